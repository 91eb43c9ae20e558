// Tests values that are replaced while calls use them.
#include "fs/base/versioned.h"

#include <optional>

#include "tests/support/allocation_faults.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a replaced value stays until the calls that began before have ended", "[fs][versioned]") {
  Epochs epochs;
  Versioned<int> value(std::make_shared<int>(1));
  std::optional<Epochs::Pin> call = epochs.pin();
  const std::weak_ptr<int> first = value.owner();
  const auto replace = [&](int next) {
    auto made = std::make_shared<int>(next);
    Epochs::Replacement replaced(epochs);
    replaced.keep(value.replace(std::move(made)));
    return replaced.end();
  };
  const Epochs::Number before = replace(2);
  CHECK(*value == 2);
  CHECK(replace(3) == before + 1);
  CHECK_FALSE(first.expired());
  CHECK_FALSE(epochs.has_ended(before));
  call.reset();
  CHECK(first.expired());
  CHECK(epochs.has_ended(before + 1));
}

TEST_CASE("a replacement needs memory before the first value is replaced, and none later",
          "[fs][versioned][memory]") {
  Epochs epochs;
  Versioned<int> value(std::make_shared<int>(0));
  const Epochs::Pin call = epochs.pin();
  const std::weak_ptr<int> first = value.owner();
  bool has_failed = true;
  for (std::uint64_t nth = 1; has_failed; ++nth) {
    const AllocationFaults faults(nth, true);
    try {
      auto made = std::make_shared<int>(1);
      Epochs::Replacement replaced(epochs);
      const std::uint64_t allocations = AllocationFaults::allocations();
      for (std::size_t kept = 1; kept < Epochs::Replacement::kMostValues; ++kept) replaced.keep(nullptr);
      replaced.keep(value.replace(std::move(made)));
      static_cast<void>(replaced.end());
      const bool needs_none = AllocationFaults::allocations() == allocations;
      has_failed = AllocationFaults::has_failed();
      const NoAllocationFaults none;
      CHECK(needs_none);
    } catch (const std::bad_alloc&) {
      const NoAllocationFaults none;
      CHECK(*value == 0);
    }
  }
  CHECK(*value == 1);
  CHECK_FALSE(first.expired());
}
