// Several writers of one archive, in thousands of orders: no update lost, no transaction torn, no lock kept.
#include "tests/crash/commit_log.h"
#include "tests/crash/hosts_run.h"
#include "tests/support/catch.h"
#include "tests/support/share_of_day.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kSchedules = 210;  // of each scenario, a seventh of them a day

/// Explores the scenarios, and checks that each one explores what it is for.
void explore(const std::vector<HostsScenario>& scenarios) {
  HostsCounts all;
  for (const HostsScenario& scenario : scenarios) {
    INFO(scenario.name);
    HostsCounts counts;
    for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
      if (!is_todays(seed)) continue;
      if (const auto wrong = run_hosts(scenario, seed, counts)) {
        FAIL_CHECK("seed " << seed << ": " << *wrong);
        break;
      }
    }
    CHECK(counts.schedules >= kSchedules / kShares);
    CHECK((counts.commits > 0) == (scenario.writers > 0 && !scenario.are_refused));
    CHECK((counts.kills > 0) == (scenario.kills_one_in > 0));
    if (scenario.fails_one_in > 0 || scenario.are_refused) CHECK(counts.refused > 0);
    CHECK(counts.power_losses > 0);
    CHECK(counts.looks > 0);
    all += counts;
  }
  WARN(all.schedules << " schedules, " << all.commits << " commits, " << all.refused
                     << " refused for a time, " << all.kills << " kills, " << all.power_losses
                     << " losses of power, " << all.looks << " looks");
}

/// A content in which commits have written these slots.
Content content(const std::vector<std::pair<std::size_t, std::size_t>>& written) {
  Content bytes = small_archive().content();
  for (const auto& [slot, number] : written) {
    bytes = content_after(small_archive(), bytes, {.pieces = {slots()[slot]}}, number);
  }
  return bytes;
}

}  // namespace

TEST_CASE("hosts: no update is lost and no transaction torn, whoever is killed when",
          "[crash][hosts][exhaustive]") {
  explore(hosts_scenarios());
}

TEST_CASE("hosts: nor by users, devices, boots, durabilities, names, and looks that fail",
          "[crash][hosts][exhaustive]") {
  explore(edge_scenarios());
}

TEST_CASE("hosts: the judge of contents finds what is lost and what is torn", "[crash][hosts]") {
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

TEST_CASE("hosts: what need not survive a loss of power may be torn, until something that must has come",
          "[crash][hosts]") {
  using Fate = LoggedCommit::Fate;
  const auto torn = [](Content bytes, std::size_t slot) {
    bytes[bytes_of(slots()[slot]).offset] ^= std::byte{1};
    return bytes;
  };
  CommitLog log;
  const std::size_t safe = log.begin({0, 1});
  log.end(safe, Fate::Done);
  const std::size_t risky = log.begin({1, 2}, Durability::Process);
  log.end(risky, Fate::Done);
  const Content both = content({{0, safe}, {1, risky}, {2, risky}});
  CHECK_FALSE(log.explain(both));
  CHECK(log.explain(content({{0, safe}, {1, safe}})));
  CHECK(log.explain(torn(both, 1)));

  CommitLog lost = log;
  lost.lose_power(both, {});
  CHECK_FALSE(lost.explain(both));
  CHECK_FALSE(lost.explain(content({{0, safe}, {1, safe}})));
  CHECK_FALSE(lost.explain(content({{0, safe}, {1, safe}, {2, risky}})));
  CHECK_FALSE(lost.explain(torn(both, 1)));
  CHECK(lost.explain(torn(both, 0)));
  CHECK(lost.explain(content({{0, safe}, {2, risky}})));  // an earlier commit was safe, and must stay

  // A loss of power keeps the bytes that were on the disk already.
  CommitLog kept = log;
  kept.lose_power(both, {1});
  CHECK_FALSE(kept.explain(content({{0, safe}, {1, risky}})));
  CHECK(kept.explain(content({{0, safe}, {1, safe}})));
  CHECK(kept.explain(torn(both, 1)));

  // A lost commit does not come back over a later commit.
  const std::size_t last = lost.begin({1});
  lost.end(last, Fate::Done);
  CHECK_FALSE(lost.explain(content({{0, safe}, {1, last}})));
  CHECK(lost.explain(both));
  CHECK(lost.explain(torn(both, 1)));
  CHECK_FALSE(lost.explain(torn(content({{0, safe}, {1, last}}), 2)));
}

}  // namespace stfs::test
