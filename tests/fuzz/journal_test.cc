// Journals as hostile input: a million of them in every run, and recovery does what a second reading of the
// format says.
#include "tests/fuzz/fuzz_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

void check(const FuzzReport& report) {
  INFO(report.text());
  CHECK(report.failure == "");
  if (report.is_replay || !report.failure.empty()) return;
  // Damage must get past the hashes, or nothing behind them is tried.
  CHECK(report.percent("applied") > 10);
  for (const char* rare : {"insisted", "applied as a part"}) CHECK(report.percent(rare) > 0.3);
  for (const char* state : {"damaged", "foreign", "unfinished", "unknown", "in use"}) {
    CHECK(report.percent(state) > 1);
  }
}

}  // namespace

TEST_CASE("journal fuzz: a tenth of a million hostile journals", "[fuzz][journal]") {
  check(fuzz(journal_target(), 0, 100'000));
}

TEST_CASE("journal fuzz: nine tenths of a million more", "[fuzz][journal][exhaustive]") {
  check(fuzz(journal_target(), 100'000, 1'000'000));
}

TEST_CASE("journal fuzz: for long", "[.long][fuzz][journal]") {
  const FuzzReport report = fuzz_for_long(journal_target());
  check(report);
  WARN(report.text());
}

}  // namespace stfs::test
