// A workload while a call or an allocation fails, and what must hold afterwards.
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
  std::uint64_t nth_allocation = 0;  // that fails; 0: none
  bool allocations_fail_for_good = false;
  unsigned retries = 0;        // of a failed commit, on the same transaction
  bool finds_journal = false;  // a killed process has left the first step committed, and nothing applied
};

/// A way to fail; its fault's count is left open.
struct FaultKind {
  std::string_view name;
  Ordeal ordeal;
};
const std::vector<FaultKind>& fault_kinds();

struct OrdealReport {
  bool was_hit = false;              // the nth call or allocation came
  std::string hit;                   // which one it was
  std::optional<std::string> wrong;  // what did not hold
  unsigned escaped_exceptions = 0;   // std::bad_alloc that core let through
  unsigned crashes = 0;              // states looked at
};

/// Runs the workload (opening the archive included) with the fault, goes on after steps that failed, and then
/// checks that reads show one content; that everything promised is there, and nothing torn, when the fault is
/// gone, when the process is killed, and when the power fails at the end or at a moment after the fault; and
/// that no commit is taken after a failed sync of the archive.
OrdealReport endure(const Workload& workload, const Ordeal& ordeal, std::uint64_t seed);

}  // namespace stfs::test
