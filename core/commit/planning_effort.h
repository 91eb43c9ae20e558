// Counts the work of planning a compaction (compaction.h). An archive of another user may have so many gaps
// that a plan would take hours.
//
// The unit is one look at a block of the archive, about a nanosecond. No time is measured, so that each
// machine makes the same plan.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace stfs {

class PlanningEffort {
 public:
  /// Called every 1,000,000 units. An error ends the planning.
  using Check = std::function<Result<void>()>;
  static constexpr std::uint64_t kUnitsPerCheck = 1'000'000;

  explicit PlanningEffort(Check check = {},
                          std::uint64_t most_units = std::numeric_limits<std::uint64_t>::max())
      : check_(std::move(check)), most_units_(most_units) {}

  /// @return goes_on().
  bool add(std::uint64_t units) {
    units_ += units;
    if (units_ >= next_check_) check();
    return goes_on();
  }
  /// False: a check has failed, or the limit is reached. Planning functions then return early, and their
  /// results have no meaning.
  [[nodiscard]] bool goes_on() const { return units_ <= most_units_ && result_; }
  /// Returns the failure of a check.
  [[nodiscard]] const Result<void>& result() const { return result_; }
  [[nodiscard]] std::uint64_t units() const { return units_; }

 private:
  void check() {
    next_check_ = units_ + kUnitsPerCheck;
    if (check_ && result_) result_ = check_();
  }

  const Check check_;
  const std::uint64_t most_units_;
  std::uint64_t units_ = 0;
  std::uint64_t next_check_ = kUnitsPerCheck;
  Result<void> result_;
};

}  // namespace stfs
