// Runs the work that commits leave behind (Filesystem::tidy()), on a thread that wakes some time after a
// commit, when no caller waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace stfs {

class Janitor {
 public:
  /// Measures the time between commits. Tests provide their own clock.
  class Clock {
   public:
    virtual ~Clock() = default;
    virtual std::chrono::steady_clock::time_point now() { return std::chrono::steady_clock::now(); }
    /// Waits for that time, or until is_over() is true. Code that makes it true notifies `wakes`.
    virtual void wait_for(std::unique_lock<std::mutex>& lock, std::condition_variable& wakes,
                          std::chrono::milliseconds time, const std::function<bool()>& is_over) {
      wakes.wait_for(lock, time, is_over);
    }
    static Clock& real();
  };
  /// tidy() runs when no further commit has come for kQuiet, or kLongest after the first commit.
  static constexpr std::chrono::milliseconds kQuiet{20};
  static constexpr std::chrono::milliseconds kLongest{200};

  /// The clock must outlive stop().
  explicit Janitor(std::function<void()> tidy, Clock& clock = Clock::real())
      : tidy_(std::move(tidy)), clock_(clock) {}
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

  const std::function<void()> tidy_;
  Clock& clock_;
  std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable wakes_;
  bool is_due_ = false;
  bool has_more_ = false;  // another commit came during the wait for quiet
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
