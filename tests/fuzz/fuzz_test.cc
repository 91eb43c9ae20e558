// Hostile input: a million of each kind in every run.
#include "tests/fuzz/fuzz_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

template <class Fuzz>
void check_each(const Fuzz& fuzz_target) {
  for (const FuzzTarget* target :
       {&header_target(), &journal_target(), &delta_target(), &index_target(), &serve_target()}) {
    DYNAMIC_SECTION(target->name) {
      const FuzzReport report = fuzz_target(*target);
      INFO(report.text());
      CHECK(report.failure == "");
      if (report.is_replay || !report.failure.empty()) return;
      for (const FuzzShare& share : target->shares) {
        INFO(share.what);
        CHECK(report.percent(share.what) >= share.least);
        CHECK(report.percent(share.what) <= share.most);
      }
    }
  }
}

}  // namespace

TEST_CASE("fuzz: a tenth of a million hostile files of each kind", "[fuzz]") {
  check_each([](const FuzzTarget& target) { return fuzz(target, 0, 100'000); });
}

TEST_CASE("fuzz: nine tenths of a million more", "[fuzz][exhaustive]") {
  check_each([](const FuzzTarget& target) { return fuzz(target, 100'000, 1'000'000); });
}

TEST_CASE("fuzz: for long", "[.long][fuzz]") {
  check_each([](const FuzzTarget& target) {
    const FuzzReport report = fuzz_for_long(target);
    WARN(report.text());
    return report;
  });
}

}  // namespace stfs::test
