// Several archives change together, or none does, whatever crashes when.
#include "tests/crash/group_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kSeeds = 4000;

}  // namespace

TEST_CASE("groups: archives that are committed together are never of two minds", "[crash][groups]") {
  GroupCounts counts;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    if (const auto wrong = run_groups(seed, counts)) {
      FAIL_CHECK("seed " << seed << ": " << *wrong);
      break;
    }
  }
  CHECK(counts.committed > kSeeds / 2);
  CHECK(counts.failed > kSeeds / 8);
  WARN(counts.states << " states, " << counts.in_recovery << " after a crash of a recovery; "
                     << counts.committed << " groups committed, " << counts.failed
                     << " ended by a failing call");
}

}  // namespace stfs::test
