// Limits the lines that requests add to the log. A program that repeats a refused request endlessly must not
// fill the disk of the system's log.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "core/base/mutex.h"

namespace stfs {

/// Any thread may call.
class LineBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Limits of each user. Most programs write a line and give up.
  static constexpr int kMostAtOnce = 200;
  static constexpr int kPerSecond = 5;
  /// Users beyond this number share one budget.
  static constexpr std::size_t kMostUsers = 64;

  /// Asks for a line. @return nothing if the line must be left out; otherwise the number of lines that were
  /// left out since the user's last line.
  std::optional<std::uint64_t> take(uid_t user, Time now);

 private:
  struct Account {
    double lines = kMostAtOnce;
    Time at;
    std::uint64_t left_out = 0;
  };

  Mutex mutex_;
  // The key without a user is for all users beyond kMostUsers.
  std::map<std::optional<uid_t>, Account> accounts_ GUARDED_BY(mutex_);
};

}  // namespace stfs
