// Several archives change together or not at all, after any crash at any moment.
#include "tests/crash/group_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kSeeds = 4000;

void explore(GroupWorld world, std::uint64_t seeds) {
  GroupCounts counts;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    if (const auto wrong = run_groups(seed, counts, world)) {
      FAIL_CHECK("seed " << seed << ": " << *wrong);
      break;
    }
  }
  CHECK(counts.states > 4 * seeds);
  CHECK(counts.in_recovery > seeds);
  CHECK(counts.committed > seeds / 2);
  CHECK(counts.failed > seeds / 8);
  WARN(counts.states << " states, " << counts.in_recovery << " after a crash of a recovery; "
                     << counts.committed << " groups committed, " << counts.failed
                     << " ended by a failing call");
}

}  // namespace

TEST_CASE("groups: archives that are committed together are never of two minds", "[crash][groups]") {
  explore(GroupWorld::Simple, kSeeds);
}

TEST_CASE("groups: a record that its owner took back does not come back with the power", "[crash][groups]") {
  // The owner dies before the removal is on the disk, a recovery removes some of the journals, and then the
  // power is lost. Of 9,000 seeds this one shows the case.
  GroupCounts counts;
  const auto wrong = run_groups(9048, counts, GroupWorld::Simple);
  INFO(wrong.value_or(""));
  CHECK_FALSE(wrong);
}

TEST_CASE("groups: nor among users, devices, boots and durabilities", "[crash][groups]") {
  explore(GroupWorld::Edges, kSeeds / 4);
}

}  // namespace stfs::test
