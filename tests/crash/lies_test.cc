// The protocol without one of its steps: a storage skips the step and reports success. The tests must catch
// each such mutant, because otherwise they would not notice that the code misses the step. tests/mutation
// removes the checks inside the code.
#include <string>
#include <vector>

#include "tests/crash/crash_run.h"
#include "tests/crash/hosts_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kMostCrashes = 20'000;  // of a workload, before the test gives up

/// The mistake after the first crash that shows one; nothing if no crash does.
std::optional<std::string> catch_lie(const std::vector<SeamCall>& lies) {
  CrashCounts counts;
  for (const Workload& workload : workloads()) {
    if (workload.archive != &small_archive() || workload.durability != Durability::Power) continue;
    const History history = record(workload, lies);
    if (history.failure) return *history.failure;
    for (std::uint64_t seed = 0; seed < kMostCrashes; ++seed) {
      RandomChoices choices(seed);
      if (auto wrong = crash_once(history, choices, counts, lies)) return wrong;
    }
  }
  return std::nullopt;
}

/// The mistake with several writers.
std::optional<std::string> catch_lie_among_hosts(
    const std::vector<SeamCall>& lies, const std::vector<HostsScenario>& scenarios = hosts_scenarios()) {
  constexpr std::uint64_t kMostSchedules = 200;
  HostsCounts counts;
  for (HostsScenario scenario : scenarios) {
    scenario.lies = lies;
    for (std::uint64_t seed = 0; seed < kMostSchedules; ++seed) {
      if (auto wrong = run_hosts(scenario, seed, counts)) return wrong;
    }
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("lies: a call of the protocol that is said to be done and is not is found out", "[crash][lies]") {
  using enum FileCall;
  const SeamCall lie =
      GENERATE(SeamCall{Sync, FileRole::Journal}, SeamCall{SyncDirectory, FileRole::Directory},
               SeamCall{Sync, FileRole::Archive}, SeamCall{Publish, FileRole::Journal},
               SeamCall{Remove, FileRole::Journal}, SeamCall{Write, FileRole::Journal},
               SeamCall{Write, FileRole::Archive});
  INFO(name_of(lie.kind) << " of the " << name_of(lie.role));
  CHECK(catch_lie({lie}));
}

TEST_CASE("lies: locks that nobody keeps are found out", "[crash][lies][hosts][exhaustive]") {
  CHECK(catch_lie_among_hosts({{FileCall::Lock, GENERATE(FileRole::Archive, FileRole::Journal)}}));
}

TEST_CASE("lies: a journal that is not given to those who may write the archive is found out",
          "[crash][lies][hosts]") {
  CHECK(catch_lie_among_hosts({{FileCall::SetMode, FileRole::Journal}}, edge_scenarios()));
  CHECK(catch_lie_among_hosts({{FileCall::SetOwner, FileRole::Journal}}, edge_scenarios()));
}

}  // namespace stfs::test
