// libFuzzer on the reader of headers. No corpus is needed; tests/support/corpus.py writes a good one:
//
//   python3 tests/support/corpus.py build/corpus && build/fuzz/tests/header_fuzz build/corpus
#include "tests/fuzz/libfuzzer.h"

using namespace stfs::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return test_one_input(header_target(), data, size);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  return mutate_input(header_target(), data, size, most, seed);
}
