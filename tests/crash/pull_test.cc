// A model that follows training has one whole version, after any crash at any moment.
#include "tests/crash/pull_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kPullSeeds = 12;
constexpr std::size_t kPullMomentsOneIn = 8;

}  // namespace

TEST_CASE("pulls: a model that follows training is one whole version, and its state says which",
          "[crash][pulls]") {
  for (const PullScenario& scenario : pull_scenarios()) {
    INFO(scenario.name);
    PullCounts counts;
    for (std::uint64_t seed = 0; seed < kPullSeeds; ++seed) {
      if (const auto wrong = run_pulls(scenario, seed, kPullMomentsOneIn, counts)) {
        FAIL_CHECK("seed " << seed << ": " << *wrong);
        break;
      }
    }
    CHECK(counts.states > 20 * kPullSeeds);
    CHECK(counts.in_recovery > 5 * kPullSeeds);
    CHECK(counts.losses > 8 * kPullSeeds);
    CHECK(counts.applied > kPullSeeds);
    // If a call fails while a pull examines the model, a full version replaces the model's files instead of
    // its bytes.
    CHECK((scenario.has_model ? counts.seeded <= counts.failed : counts.seeded > 0));
    CHECK(counts.failed > 0);
    WARN(scenario.name << ": " << counts.states << " states, " << counts.in_recovery
                       << " after another crash, " << counts.losses << " losses of power; " << counts.seeded
                       << " versions seeded, " << counts.applied << " applied, " << counts.failed
                       << " pulls and publishers ended by a failing call");
  }
}

}  // namespace stfs::test
