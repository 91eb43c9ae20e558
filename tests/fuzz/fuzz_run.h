// A million executions in two processes, each execution from a seed of its own that replays it.
//
// Whatever becomes of an execution, a wrong answer, a crash, a report of a sanitizer, a hang, its seed is in
// the failure, and its input in a file that the libFuzzer program of the same name replays too. The
// environment:
//
//   STFS_FUZZ_SEED=N       only that seed, in this process; in the long tests the one to begin with
//   STFS_FUZZ_SECONDS=N    how long each of the long tests goes on (1200)
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
  /// The first failure, with what is needed to replay it; empty where there was none.
  std::string failure;
  /// STFS_FUZZ_SEED chose one execution: nothing is to be expected of the outcomes.
  bool is_replay = false;

  /// Of 100 executions, so many came to this.
  [[nodiscard]] double percent(std::string_view outcome) const;
  [[nodiscard]] std::string text() const;
};

/// Seeds [first, end).
FuzzReport fuzz(const FuzzTarget& target, std::uint64_t first, std::uint64_t end);
/// For as long as the environment says, with seeds that no other test uses.
FuzzReport fuzz_for_long(const FuzzTarget& target);

}  // namespace stfs::test
