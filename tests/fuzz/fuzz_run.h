// Runs many executions in two processes. Each execution has a seed that replays it.
//
// An execution can fail with a wrong answer, a crash, a sanitizer's report or a hang. In each case the
// failure has the seed, and a file has the input. The libFuzzer program of the same name also replays that
// file. The environment:
//
//   STFS_FUZZ_SEED=N       only this seed, in this process; for the long tests the first seed
//   STFS_FUZZ_SECONDS=N    the duration of each long test, in seconds (1200)
//
//   STFS_FUZZ_SEED=217 build/release/tests/fuzz_tests '[fuzz]~[.]' -c journal
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tests/fuzz/target.h"

namespace stfs::test {

struct FuzzReport {
  std::uint64_t executions = 0;
  std::map<std::string_view, std::uint64_t> outcomes;
  /// The first failure and its replay, or an empty string.
  std::string failure;
  /// STFS_FUZZ_SEED has chosen one execution, so nothing is expected of the shares of outcomes.
  bool is_replay = false;

  /// Returns the share of executions with this outcome, in percent.
  [[nodiscard]] double percent(std::string_view outcome) const;
  [[nodiscard]] std::string text() const;
};

/// Runs the seeds [first, end).
FuzzReport fuzz(const FuzzTarget& target, std::uint64_t first, std::uint64_t end);
/// Runs for the time in the environment, with seeds that no other test uses.
FuzzReport fuzz_for_long(const FuzzTarget& target);

}  // namespace stfs::test
