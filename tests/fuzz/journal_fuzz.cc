// libFuzzer on journals and their recovery:
//
//   build/fuzz/tests/journal_fuzz -max_len=160000
#include "tests/fuzz/libfuzzer.h"

using namespace stfs::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return test_one_input(journal_target(), data, size);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  return mutate_input(journal_target(), data, size, most, seed);
}
