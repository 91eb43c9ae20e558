// Every call of the seam fails once, and fails from then on, in every workload: the caller hears of it, and the
// archive is old or new.
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "tests/crash/fault_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

struct Kind {
  std::string_view name;
  Ordeal ordeal;
};

const Kind kKinds[] = {
    {"EIO once", {.fault = {.errno_value = EIO, .kind = {}}}},
    {"EIO once, tried again", {.fault = {.errno_value = EIO, .kind = {}}, .retries = 2}},
    {"EIO for good", {.fault = {.errno_value = EIO, .kind = {}, .is_for_good = true}}},
    {"cut short once", {.fault = {.errno_value = EIO, .kind = {}, .cuts_short = true}}},
    {"cut short once, tried again", {.fault = {.errno_value = EIO, .kind = {}, .cuts_short = true}, .retries = 1}},
    {"ENOSPC once", {.fault = {.errno_value = ENOSPC, .kind = {}, .only_changes = true}, .retries = 1}},
    {"ENOSPC for good",
     {.fault = {.errno_value = ENOSPC, .kind = {}, .only_changes = true, .is_for_good = true, .cuts_short = true}}},
    {"EDQUOT for good, tried again",
     {.fault = {.errno_value = EDQUOT, .kind = {}, .only_changes = true, .is_for_good = true}, .retries = 2}},
    {"ENOMEM once", {.fault = {.errno_value = ENOMEM, .kind = {}}}},
    {"syncs fail for good", {.fault = {.errno_value = EIO, .kind = FileCall::Sync, .is_for_good = true}, .retries = 1}},
    {"one sync fails", {.fault = {.errno_value = EIO, .kind = FileCall::Sync}, .retries = 1}},
    {"syncs of the directory fail for good",
     {.fault = {.errno_value = EIO, .kind = FileCall::SyncDirectory, .is_for_good = true}, .retries = 1}},
    {"one sync of the directory fails", {.fault = {.errno_value = EIO, .kind = FileCall::SyncDirectory}, .retries = 1}},
    {"removing fails for good", {.fault = {.errno_value = EIO, .kind = FileCall::Remove, .is_for_good = true}}},
};

struct Sums {
  unsigned faults = 0;
  unsigned crashes = 0;
  unsigned escaped_exceptions = 0;
  std::set<std::string> hits;
};

/// Raises the count until it is no longer reached.
void sweep(const Workload& workload, std::string_view kind, Sums& sums, unsigned most,
           const std::function<Ordeal(unsigned)>& ordeal_of) {
  for (unsigned nth = 1; nth <= most; ++nth) {
    const OrdealReport report = endure(workload, ordeal_of(nth), nth);
    sums.crashes += report.crashes;
    sums.escaped_exceptions += report.escaped_exceptions;
    if (report.wrong) {
      FAIL_CHECK(workload.name << ", " << kind << ", number " << nth << " (" << report.hit << "): " << *report.wrong);
    }
    if (!report.was_hit) break;
    sums.hits.insert(report.hit);
    ++sums.faults;
  }
}

constexpr unsigned kNoLimit = 1'000'000;

}  // namespace

TEST_CASE("faults: every call fails, once and for good, in every workload", "[crash][faults]") {
  Sums sums;
  for (const Workload& workload : workloads()) {
    for (const Kind& kind : kKinds) {
      sweep(workload, kind.name, sums, kNoLimit, [&](unsigned nth) {
        Ordeal ordeal = kind.ordeal;
        ordeal.fault.nth = nth;
        return ordeal;
      });
    }
  }
  // A sweep that misses a call of the protocol proves nothing about it.
  for (const std::string call : {"open of the archive", "create of the journal", "publish of the journal",
                                 "remove of the journal", "sync of the directory of the directory",
                                 "list of the directory", "read of the archive", "read of the journal",
                                 "write of the archive", "write of the journal", "clone of the archive",
                                 "sync of the archive", "sync of the journal", "status of the archive",
                                 "status of the path of the archive", "lock of the archive", "lock of the journal"}) {
    INFO(call);
    CHECK(sums.hits.contains(call));
  }
  WARN(sums.faults << " faults, " << sums.crashes << " states recovered");
}

TEST_CASE("faults: every allocation fails, once and for good", "[crash][faults]") {
  Sums sums;
  for (const Workload& workload : workloads()) {
    for (const bool for_good : {false, true}) {
      sweep(workload, for_good ? "out of memory for good" : "out of memory once", sums, kNoLimit, [&](unsigned nth) {
        return Ordeal{.fault = {}, .nth_allocation = nth, .allocations_fail_for_good = for_good, .retries = nth % 2};
      });
    }
  }
  CHECK(sums.escaped_exceptions == 0);
  WARN(sums.faults << " failed allocations, " << sums.crashes << " states recovered");
}

}  // namespace stfs::test
