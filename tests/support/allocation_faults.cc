// operator new that counts.
#include "tests/support/allocation_faults.h"

#include <cstdlib>
#include <new>

namespace stfs::test {
namespace {

struct Plan {
  bool is_armed = false;
  bool is_for_good = false;
  std::uint64_t nth = 0;
  std::uint64_t count = 0;
};
thread_local constinit Plan plan;

bool must_fail() {
  if (!plan.is_armed || NoAllocationFaults::depth > 0) return false;
  ++plan.count;
  return plan.nth != 0 && (plan.count == plan.nth || (plan.is_for_good && plan.count > plan.nth));
}

}  // namespace

AllocationFaults::AllocationFaults(std::uint64_t nth, bool for_good) {
  plan = {.is_armed = true, .is_for_good = for_good, .nth = nth, .count = 0};
}
AllocationFaults::~AllocationFaults() {
  plan.is_armed = false;
}
std::uint64_t AllocationFaults::allocations() {
  return plan.count;
}
bool AllocationFaults::has_failed() {
  return plan.nth != 0 && plan.count >= plan.nth;
}

namespace {

void* allocate(std::size_t size, std::size_t alignment) {
  if (must_fail()) return nullptr;
  if (size == 0) size = 1;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace stfs::test

// The forms that the library's other forms end in.
void* operator new(std::size_t size) {
  return stfs::test::allocate_or_throw(size, 0);
}
void* operator new[](std::size_t size) {
  return stfs::test::allocate_or_throw(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return stfs::test::allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return stfs::test::allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return stfs::test::allocate(size, 0);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return stfs::test::allocate(size, 0);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
