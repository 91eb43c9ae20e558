// Runs the work that commits leave to later, on its own thread. MountedModel::tidy() runs soon after a
// commit, when no caller waits; MountedModel::close_gaps() runs when no commit has run for seconds.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/mutex.h"

namespace stfs {

class Janitor {
 public:
  /// Measures the time between commits. Tests provide their own clock.
  class Clock {
   public:
    virtual ~Clock() = default;
    virtual std::chrono::steady_clock::time_point now() { return std::chrono::steady_clock::now(); }
    /// Waits for this time, or until is_over() is true. Code that makes it true notifies `wakes`.
    /// @param is_over  runs with the mutex held.
    virtual void wait_for(Mutex& mutex, Condition& wakes, std::chrono::milliseconds time,
                          const std::function<bool()>& is_over) REQUIRES(mutex) {
      wakes.wait_for(mutex, time, is_over);
    }
    static Clock& real();
  };
  /// tidy() runs when no further commit has run for kQuiet, or kLongest after the first commit.
  static constexpr std::chrono::milliseconds kQuiet{20};
  static constexpr std::chrono::milliseconds kLongest{200};
  /// rest() runs when no further commit has run for this time after tidy().
  static constexpr std::chrono::milliseconds kIdle{5'000};

  struct Work {
    std::function<void()> tidy;
    std::function<void()> rest{};  // may be empty
  };
  /// The clock must outlive stop().
  explicit Janitor(Work work, Clock& clock = Clock::real()) : work_(std::move(work)), clock_(clock) {}
  ~Janitor() { stop(); }
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  void start();
  /// Notes a commit. Any thread may call.
  void note_commit();
  /// Ends the thread. If tidy() is due, the caller must do its work.
  void stop();

 private:
  void serve();
  /// Waits for a commit, and calls rest() if no commit runs for kIdle.
  void wait_for_commit() REQUIRES(mutex_);

  const Work work_;
  Clock& clock_;
  Mutex mutex_;  // no function is called with it held
  Condition wakes_;
  bool is_due_ GUARDED_BY(mutex_) = false;
  bool has_rest_ GUARDED_BY(mutex_) = false;  // rest() has not run since tidy()
  bool has_more_ GUARDED_BY(mutex_) = false;  // another commit ran during the wait for quiet
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stfs
