// Runs a workload while a call or an allocation fails, and checks the archive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/workload.h"
#include "tests/support/faulty_storage.h"

namespace stfs::test {

struct Ordeal {
  Fault fault;
  std::uint64_t nth_allocation = 0;  // this allocation fails; 0: none
  bool allocations_fail_for_good = false;
  unsigned retries = 0;        // of a failed commit, on the same transaction
  bool finds_journal = false;  // a killed process has left the first step committed, but not applied
};

/// A kind of fault; the caller sets the count of the failing call.
struct FaultKind {
  std::string_view name;
  Ordeal ordeal;
};
const std::vector<FaultKind>& fault_kinds();

struct OrdealReport {
  bool was_hit = false;              // the nth call or allocation was reached
  std::string hit;                   // the failed call
  std::optional<std::string> wrong;  // the broken promise
  unsigned escaped_exceptions = 0;   // std::bad_alloc that core let through
  unsigned crashes = 0;              // checked states
};

/// Runs the workload with the fault, from the opening of the archive on, and continues after failed steps.
/// Then checks that reads show one content. Promised steps must be there, and no step may be torn: without
/// the fault, after a kill, and after a loss of power at the end or at a moment after the fault. No commit
/// may succeed after a failed sync of the archive.
OrdealReport endure(const Workload& workload, const Ordeal& ordeal, std::uint64_t seed);

}  // namespace stfs::test
