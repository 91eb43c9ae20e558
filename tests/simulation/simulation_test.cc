// Simulates a million operations in every run, and a hundred million with --long.
#include "tests/simulation/simulation.h"

#include <iostream>

#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::size_t kOperations = 200;  // of a seed: a failure is short, and all mounts are young

void simulate_all(std::uint64_t first_seed, std::uint64_t operations) {
  SimulationCounts counts;
  for (std::uint64_t seed = first_seed; counts.operations < operations; ++seed) {
    const std::string wrong = simulate_seed(seed, kOperations, counts);
    INFO(wrong);
    REQUIRE(wrong.empty());
  }
  std::cout << counts.operations << " operations, " << counts.requests << " requests, " << counts.commits
            << " commits, " << counts.mounts << " mounts, " << counts.power_losses << " losses of power, "
            << counts.faults << " faults, " << counts.checks << " reads compared\n";
  // The counts show that the simulation has really done something.
  CHECK(counts.commits > operations / 100);
  CHECK(counts.checks > operations / 50);
  CHECK(counts.power_losses > operations / 1000);
  CHECK(counts.faults > operations / 1000);
}

}  // namespace

TEST_CASE("a mount shows and keeps what a model in memory does: a million operations",
          "[simulation][exhaustive]") {
  simulate_all(0, 1'000'000);
}

TEST_CASE("a mount shows and keeps what a model in memory does: twenty thousand operations", "[simulation]") {
  simulate_all(1'000'000, 20'000);
}

TEST_CASE("a mount shows and keeps what a model in memory does: a hundred million operations",
          "[.][long][simulation]") {
  simulate_all(10'000'000, 100'000'000);
}

TEST_CASE("the same seed is the same simulation", "[simulation]") {
  const Plan plan = random_plan(7, kOperations);
  SimulationCounts counts[2];
  for (SimulationCounts& each : counts) CHECK(simulate(plan, each).empty());
  CHECK(counts[0].requests == counts[1].requests);
  CHECK(counts[0].commits == counts[1].commits);
  CHECK(counts[0].checks == counts[1].checks);
}

}  // namespace stfs::test
