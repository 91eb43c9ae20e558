// Several writers of one archive, in thousands of orders: no update lost, no transaction torn, no lock kept.
#include "tests/crash/commit_log.h"
#include "tests/crash/hosts_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kSchedules = 150;  // of each scenario

}  // namespace

TEST_CASE("hosts: no update is lost and no transaction torn, whoever is killed when",
          "[crash][hosts][exhaustive]") {
  HostsCounts counts;
  for (const HostsScenario& scenario : hosts_scenarios()) {
    for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
      if (const auto wrong = run_hosts(scenario, seed, counts)) {
        FAIL_CHECK(scenario.name << ", seed " << seed << ": " << *wrong);
        break;
      }
    }
  }
  WARN(counts.schedules << " schedules, " << counts.commits << " commits, " << counts.refused
                        << " refused for a time, " << counts.kills << " kills, " << counts.power_losses
                        << " losses of power");
}

TEST_CASE("hosts: the judge of contents finds what is lost and what is torn", "[crash][hosts]") {
  const auto content = [](std::vector<std::pair<std::size_t, std::size_t>> written) {
    Content bytes = small_archive().content();
    for (const auto& [slot, number] : written) {
      bytes = content_after(small_archive(), bytes, {.pieces = {slots()[slot]}}, number);
    }
    return bytes;
  };
  CommitLog log;
  CHECK_FALSE(log.explain(content({})));
  const std::size_t one = log.begin({0, 1});
  CHECK_FALSE(log.explain(content({})));
  CHECK_FALSE(log.explain(content({{0, one}, {1, one}})));
  CHECK(log.explain(content({{0, one}})));
  log.end(one, LoggedCommit::Fate::Done);
  CHECK(log.explain(content({})));
  const std::size_t two = log.begin({1, 2});
  const std::size_t three = log.begin({1, 2});
  CHECK_FALSE(log.explain(content({{0, one}, {1, two}, {2, two}})));
  CHECK(log.explain(content({{0, one}, {1, two}, {2, three}})));
  log.end(two, LoggedCommit::Fate::Done);
  log.end(three, LoggedCommit::Fate::Done);
  CHECK_FALSE(log.explain(content({{0, one}, {1, two}, {2, two}})));
  CHECK_FALSE(log.explain(content({{0, one}, {1, three}, {2, three}})));
  const std::size_t four = log.begin({2});
  log.end(four, LoggedCommit::Fate::Refused);
  CHECK(log.explain(content({{0, one}, {1, three}, {2, four}})));
  const std::size_t five = log.begin({0});
  log.end(five, LoggedCommit::Fate::Unknown);
  CHECK_FALSE(log.explain(content({{0, one}, {1, three}, {2, three}})));
  CHECK_FALSE(log.explain(content({{0, five}, {1, three}, {2, three}})));
  Content outside = content({{0, one}, {1, three}, {2, three}});
  outside[8] ^= std::byte{1};
  CHECK(log.explain(outside));
}

}  // namespace stfs::test
