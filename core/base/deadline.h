// The time at which a caller stops waiting. One deadline covers all waits of a call.
#pragma once

#include <algorithm>
#include <chrono>

namespace stfs {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_in(std::chrono::milliseconds patience) {
  return std::chrono::steady_clock::now() + patience;
}

/// Returns zero if the deadline has passed.
inline std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0));
}

}  // namespace stfs
