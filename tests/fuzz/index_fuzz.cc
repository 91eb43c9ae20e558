// libFuzzer on the index of a sharded model. No corpus is needed:
//
//   build/fuzz/tests/index_fuzz -max_len=4096
#include "tests/fuzz/libfuzzer.h"

using namespace stfs::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return test_one_input(index_target(), data, size);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  return mutate_input(index_target(), data, size, most, seed);
}
