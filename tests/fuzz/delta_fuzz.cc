// libFuzzer on the deltas of `stfs apply`:
//
//   build/fuzz/tests/delta_fuzz -max_len=100000
#include "tests/fuzz/libfuzzer.h"

using namespace stfs::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return test_one_input(delta_target(), data, size);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  return mutate_input(delta_target(), data, size, most, seed);
}
