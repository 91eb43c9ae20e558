// Out of memory on demand: the nth allocation of this thread fails.
//
// The program's operator new is replaced where allocation_faults.cc is linked in.
#pragma once

#include <cstdint>

namespace stfs::test {

/// While it lives, allocations of this thread are counted, and the nth one throws std::bad_alloc; all later
/// ones too, where it is for good. 0: none.
class AllocationFaults {
 public:
  AllocationFaults(std::uint64_t nth, bool for_good);
  ~AllocationFaults();
  AllocationFaults(const AllocationFaults&) = delete;
  AllocationFaults& operator=(const AllocationFaults&) = delete;

  [[nodiscard]] static std::uint64_t allocations();
  /// Whether the nth came.
  [[nodiscard]] static bool has_failed();
};

/// Allocations of the test's own machinery do not count and do not fail while it lives.
class NoAllocationFaults {
 public:
  NoAllocationFaults() { ++depth; }
  ~NoAllocationFaults() { --depth; }
  NoAllocationFaults(const NoAllocationFaults&) = delete;
  NoAllocationFaults& operator=(const NoAllocationFaults&) = delete;

  inline static thread_local constinit int depth = 0;
};

}  // namespace stfs::test
