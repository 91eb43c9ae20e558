// The judges of target.h as libFuzzer wants them, with our mutator beside its own. Built by clang:
//
//   packaging/compile --preset fuzz -D STFS_FUZZ=ON --target journal_fuzz
//   build/fuzz/tests/journal_fuzz -max_total_time=60 -max_len=160000
//
// What fuzz_tests leaves of a failure is an input for it: `journal_fuzz FILE`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/target.h"

/// libFuzzer's own changes, which know which bytes were compared with what.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace stfs::test {

inline int test_one_input(const FuzzTarget& target, const std::uint8_t* data, std::size_t size) {
  const FuzzOutcome outcome = target.fuzz_one(std::as_bytes(std::span(data, size)));
  if (outcome.wrong.empty()) return 0;
  std::fprintf(stderr, "%s: %s\n", std::string(outcome.what).c_str(), outcome.wrong.c_str());
  std::abort();
}

inline std::size_t mutate_input(const FuzzTarget& target, std::uint8_t* data, std::size_t size,
                                std::size_t most, unsigned seed) {
  RandomChoices choices(seed);
  if (choices.one_in(4)) return LLVMFuzzerMutate(data, size, most);
  const auto now = std::as_bytes(std::span(data, size));
  Bytes input(now.begin(), now.end());
  // Without a corpus to begin with, the mutator's own inputs are one.
  if (size < 2 || choices.one_in(16)) {
    input = target.make(choices);
  } else {
    target.mutate(input, choices);
  }
  size = std::min(input.size(), most);
  if (size > 0) std::memcpy(data, input.data(), size);
  return size;
}

}  // namespace stfs::test
