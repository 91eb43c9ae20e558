// Time and locks of a simulation with one thread. Time passes only in a sleep. If a lock is taken already, no
// thread will ever release it.
#pragma once

#include <functional>

namespace stfs::test {

/// Simulates the clocks during its lifetime. Only one may exist at a time.
class SimulatedClock {
 public:
  /// @param on_sleep  called in a sleep and in a wait with a time limit; may be empty.
  /// @param on_standstill  prints how the program came to wait for a taken lock; the program ends then.
  SimulatedClock(std::function<void()> on_sleep, std::function<void()> on_standstill);
  ~SimulatedClock();
  SimulatedClock(const SimulatedClock&) = delete;
  SimulatedClock& operator=(const SimulatedClock&) = delete;
};

}  // namespace stfs::test
