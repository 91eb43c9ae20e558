// Until when a caller waits, for calls that wait several times.
#pragma once

#include <algorithm>
#include <chrono>

namespace stfs {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_in(std::chrono::milliseconds patience) {
  return std::chrono::steady_clock::now() + patience;
}

/// Zero when it has passed.
inline std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0));
}

}  // namespace stfs
