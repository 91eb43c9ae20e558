// Runs hostile input: a million inputs of each kind in a week, and in a run with --long.
#include <algorithm>

#include "tests/fuzz/fuzz_run.h"
#include "tests/support/catch.h"
#include "tests/support/share_of_day.h"

namespace stfs::test {
namespace {

/// Runs today's seventh of the seeds [first, end), or all of them with STFS_LONG.
FuzzReport fuzz_share(const FuzzTarget& target, std::uint64_t first, std::uint64_t end) {
  const std::uint64_t size = (end - first + kShares - 1) / kShares;
  FuzzReport all;
  for (std::uint64_t at = 0; at < kShares; ++at) {
    if (!is_todays(at)) continue;
    const std::uint64_t begin = first + at * size;
    const FuzzReport report = fuzz(target, begin, std::min(begin + size, end));
    all.executions += report.executions;
    for (const auto& [outcome, times] : report.outcomes) all.outcomes[outcome] += times;
    all.is_replay = report.is_replay;
    all.failure = report.failure;
    if (!all.failure.empty()) break;
  }
  return all;
}

template <class Fuzz>
void check_each(const Fuzz& fuzz_target) {
  for (const FuzzTarget* target :
       {&header_target(), &journal_target(), &delta_target(), &index_target(), &serve_target()}) {
    DYNAMIC_SECTION(target->name) {
      const FuzzReport report = fuzz_target(*target);
      INFO(report.text());
      CHECK(report.failure == "");
      if (report.is_replay || !report.failure.empty()) return;
      for (const FuzzShare& share : target->shares) {
        INFO(share.what);
        CHECK(report.percent(share.what) >= share.least);
        CHECK(report.percent(share.what) <= share.most);
      }
    }
  }
}

}  // namespace

TEST_CASE("fuzz: a tenth of a million hostile files of each kind", "[fuzz]") {
  check_each([](const FuzzTarget& target) { return fuzz_share(target, 0, 100'000); });
}

TEST_CASE("fuzz: nine tenths of a million more", "[fuzz][exhaustive]") {
  check_each([](const FuzzTarget& target) { return fuzz_share(target, 100'000, 1'000'000); });
}

TEST_CASE("fuzz: for long", "[.long][fuzz]") {
  check_each([](const FuzzTarget& target) {
    const FuzzReport report = fuzz_for_long(target);
    WARN(report.text());
    return report;
  });
}

}  // namespace stfs::test
