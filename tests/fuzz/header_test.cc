// Headers as hostile input: a million of them in every run.
#include "tests/fuzz/fuzz_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

void check(const FuzzReport& report) {
  INFO(report.text());
  CHECK(report.failure == "");
  if (report.is_replay || !report.failure.empty()) return;
  // Damage that leaves nothing to accept tries nothing but the first checks.
  CHECK(report.percent("accepted") > 10);
  CHECK(report.percent("no sense") > 10);
  CHECK(report.percent("no grammar") > 10);
}

}  // namespace

TEST_CASE("header fuzz: a tenth of a million hostile files", "[fuzz][header]") {
  check(fuzz(header_target(), 0, 100'000));
}

TEST_CASE("header fuzz: nine tenths of a million more", "[fuzz][header][exhaustive]") {
  check(fuzz(header_target(), 100'000, 1'000'000));
}

TEST_CASE("header fuzz: for long", "[.long][fuzz][header]") {
  const FuzzReport report = fuzz_for_long(header_target());
  check(report);
  WARN(report.text());
}

}  // namespace stfs::test
