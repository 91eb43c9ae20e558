// Runs libFuzzer on one kind of hostile input for any time. Our mutator runs beside libFuzzer's. Built by
// clang:
//
//   packaging/compile --preset fuzz -D STFS_FUZZ=ON --target journal_fuzz
//   build/fuzz/tests/journal_fuzz -max_total_time=60 -max_len=160000
//
// `journal_fuzz FILE` replays the input that a failure of fuzz_tests has left. No corpus is needed. A good
// corpus of headers:
//
//   python3 tests/support/corpus.py build/corpus && build/fuzz/tests/header_fuzz build/corpus
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fuzz/target.h"

/// libFuzzer's own mutator, which knows which bytes were compared with each other.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace stfs::test {
namespace {

/// Calls the function of target.h that tests/CMakeLists.txt has chosen.
const FuzzTarget& target() {
  return STFS_FUZZ_TARGET();
}

int test_one_input(const std::uint8_t* data, std::size_t size) {
  const FuzzOutcome outcome = target().fuzz_one(std::as_bytes(std::span(data, size)));
  if (outcome.wrong.empty()) return 0;
  std::fprintf(stderr, "%s: %s\n", std::string(outcome.what).c_str(), outcome.wrong.c_str());
  std::abort();
}

std::size_t mutate_input(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  RandomChoices choices(seed);
  if (choices.one_in(4)) return LLVMFuzzerMutate(data, size, most);
  const auto now = std::as_bytes(std::span(data, size));
  Bytes input(now.begin(), now.end());
  // Without a corpus, libFuzzer begins with inputs of our mutator.
  if (size < 2 || choices.one_in(16)) {
    input = target().make(choices);
  } else {
    target().mutate(input, choices);
  }
  size = std::min(input.size(), most);
  if (size > 0) std::memcpy(data, input.data(), size);
  return size;
}

}  // namespace
}  // namespace stfs::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return stfs::test::test_one_input(data, size);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  return stfs::test::mutate_input(data, size, most, seed);
}
