// Every storage call fails once, and fails from then on, in every workload: the caller gets an error, and the
// archive is old or new.
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "tests/crash/fault_run.h"
#include "tests/support/catch.h"
#include "tests/support/share_of_day.h"

namespace stfs::test {
namespace {

struct Sums {
  unsigned faults = 0;
  unsigned crashes = 0;
  unsigned escaped_exceptions = 0;
  std::set<std::string> hits;
};

/// Raises the count of the failing call until the workload has fewer calls.
void sweep(const Workload& workload, std::string_view kind, Sums& sums, unsigned most,
           const std::function<Ordeal(unsigned)>& ordeal_of) {
  for (unsigned nth = 1; nth <= most; ++nth) {
    const OrdealReport report = endure(workload, ordeal_of(nth), nth);
    sums.crashes += report.crashes;
    sums.escaped_exceptions += report.escaped_exceptions;
    if (report.wrong) {
      FAIL_CHECK(workload.name << ", " << kind << ", number " << nth << " (" << report.hit
                               << "): " << *report.wrong);
    }
    if (!report.was_hit) break;
    sums.hits.insert(report.hit);
    ++sums.faults;
  }
}

constexpr unsigned kNoLimit = 1'000'000;

}  // namespace

TEST_CASE("faults: every call fails, once and for good, in every workload", "[crash][faults][exhaustive]") {
  Sums sums;
  std::uint64_t at = 0;  // each day sweeps a seventh, with every kind of fault
  for (const Workload& workload : workloads()) {
    for (const FaultKind& kind : fault_kinds()) {
      if (!is_todays(at++)) continue;
      sweep(workload, kind.name, sums, kNoLimit, [&](unsigned nth) {
        Ordeal ordeal = kind.ordeal;
        ordeal.fault.nth = nth;
        return ordeal;
      });
    }
    ++at;
  }
  // Sweeps again with a journal that must be recovered first.
  for (const Workload& workload : workloads()) {
    if (workload.steps.size() < 2) continue;
    for (const FaultKind& kind : fault_kinds()) {
      if (!is_todays(at++)) continue;
      sweep(workload, std::string(kind.name) + ", a dead owner's journal there", sums, kNoLimit,
            [&](unsigned nth) {
              Ordeal ordeal = kind.ordeal;
              ordeal.fault.nth = nth;
              ordeal.finds_journal = true;
              return ordeal;
            });
    }
    ++at;
  }
  // A sweep proves nothing about a call that it misses.
  for (const std::string call :
       {"open of the archive", "create of the journal", "publish of the journal", "remove of the journal",
        "sync of the directory of the directory", "list of the directory", "read of the archive",
        "read of the journal", "write of the archive", "write of the journal", "clone of the archive",
        "sync of the archive", "sync of the journal", "status of the archive",
        "status of the path of the archive", "lock of the archive", "lock of the journal"}) {
    INFO(call);
    CHECK(sums.hits.contains(call));
  }
  WARN(sums.faults << " faults, " << sums.crashes << " states recovered");
}

TEST_CASE("faults: every allocation fails, once and for good", "[crash][faults][exhaustive]") {
  Sums sums;
  std::uint64_t at = 0;
  for (const Workload& workload : workloads()) {
    for (const bool for_good : {false, true}) {
      if (!is_todays(at++)) continue;
      sweep(workload, for_good ? "out of memory for good" : "out of memory once", sums, kNoLimit,
            [&](unsigned nth) {
              return Ordeal{.fault = {},
                            .nth_allocation = nth,
                            .allocations_fail_for_good = for_good,
                            .retries = nth % 2};
            });
    }
  }
  CHECK(sums.escaped_exceptions == 0);
  WARN(sums.faults << " failed allocations, " << sums.crashes << " states recovered");
}

}  // namespace stfs::test
