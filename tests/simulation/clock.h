// Time and locks of a simulation with one thread: time passes where somebody sleeps, and a lock that is taken
// already is one that nobody will ever give back.
#pragma once

#include <functional>

namespace stfs::test {

/// While it lives, the clocks are simulated; one at a time.
class SimulatedClock {
 public:
  /// @param on_sleep  called by who sleeps or waits for a time; may be empty.
  /// @param on_standstill  says what has led to a lock that nobody gives back; the program ends then.
  SimulatedClock(std::function<void()> on_sleep, std::function<void()> on_standstill);
  ~SimulatedClock();
  SimulatedClock(const SimulatedClock&) = delete;
  SimulatedClock& operator=(const SimulatedClock&) = delete;
};

}  // namespace stfs::test
