// Deltas as hostile input: a million of them in every run go through `stfs apply`.
#include "tests/fuzz/fuzz_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

void check(const FuzzReport& report) {
  INFO(report.text());
  CHECK(report.failure == "");
  if (report.is_replay || !report.failure.empty()) return;
  for (const char* outcome : {"no archive", "misfit", "fits"}) CHECK(report.percent(outcome) > 10);
}

}  // namespace

TEST_CASE("delta fuzz: a tenth of a million hostile deltas", "[fuzz][delta]") {
  check(fuzz(delta_target(), 0, 100'000));
}

TEST_CASE("delta fuzz: nine tenths of a million more", "[fuzz][delta][exhaustive]") {
  check(fuzz(delta_target(), 100'000, 1'000'000));
}

TEST_CASE("delta fuzz: for long", "[.long][fuzz][delta]") {
  const FuzzReport report = fuzz_for_long(delta_target());
  check(report);
  WARN(report.text());
}

}  // namespace stfs::test
