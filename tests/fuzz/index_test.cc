// Indexes of sharded models as hostile input: a million of them in every run.
#include "tests/fuzz/fuzz_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

void check(const FuzzReport& report) {
  INFO(report.text());
  CHECK(report.failure == "");
  if (report.is_replay || !report.failure.empty()) return;
  // Each way that an index can go is gone often.
  CHECK(report.percent("whole") > 10);
  CHECK(report.percent("at odds") > 10);
  CHECK(report.percent("refused") > 10);
  CHECK(report.percent("way out") > 3);
  CHECK(report.percent("no shard") > 1);
  CHECK(report.percent("not sure") < 1);
}

}  // namespace

TEST_CASE("index fuzz: a tenth of a million hostile indexes", "[fuzz][index]") {
  check(fuzz(index_target(), 0, 100'000));
}

TEST_CASE("index fuzz: nine tenths of a million more", "[fuzz][index][exhaustive]") {
  check(fuzz(index_target(), 100'000, 1'000'000));
}

TEST_CASE("index fuzz: for long", "[.long][fuzz][index]") {
  const FuzzReport report = fuzz_for_long(index_target());
  check(report);
  WARN(report.text());
}

}  // namespace stfs::test
