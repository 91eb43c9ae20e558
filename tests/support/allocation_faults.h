// Out of memory on demand: the nth allocation of this thread fails.
//
// The program's operator new is replaced where allocation_faults.cc is linked in.
#pragma once

#include <cstdint>

namespace stfs::test {

/// Counts the allocations of this thread while the object lives. The nth allocation throws std::bad_alloc;
/// with `for_good` all later allocations throw also. 0: none throws.
class AllocationFaults {
 public:
  AllocationFaults(std::uint64_t nth, bool for_good);
  ~AllocationFaults();
  AllocationFaults(const AllocationFaults&) = delete;
  AllocationFaults& operator=(const AllocationFaults&) = delete;

  [[nodiscard]] static std::uint64_t allocations();
  /// True after the nth allocation.
  [[nodiscard]] static bool has_failed();
};

/// While the object lives, this thread's allocations are not counted and do not fail: they are the test's
/// own.
class NoAllocationFaults {
 public:
  NoAllocationFaults() { ++depth; }
  ~NoAllocationFaults() { --depth; }
  NoAllocationFaults(const NoAllocationFaults&) = delete;
  NoAllocationFaults& operator=(const NoAllocationFaults&) = delete;

  inline static thread_local constinit int depth = 0;
};

}  // namespace stfs::test
