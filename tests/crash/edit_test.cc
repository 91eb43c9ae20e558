// Edits of the structure, among patches, with crashes.
#include "tests/crash/edit_run.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("edits and patches at random survive every crash, and no plain reader is misled", "[crash][edit]") {
  EditCounts counts;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto wrong = run_edits(seed, 60, counts);
    INFO(wrong.value_or(""));
    REQUIRE_FALSE(wrong);
  }
  CHECK(counts.states > 10'000);
  CHECK(counts.in_recovery > 1000);
  CHECK(counts.hidden > 100);
}

TEST_CASE("whatever call of an edit fails, the archive is the old one or the new one", "[crash][edit]") {
  EditCounts counts;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto wrong = fail_edits(seed, counts);
    INFO(wrong.value_or(""));
    REQUIRE_FALSE(wrong);
  }
  CHECK(counts.states > 5000);
}
