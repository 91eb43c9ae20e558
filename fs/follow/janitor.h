// Runs the work that commits leave behind, on a thread: some of it (Filesystem::tidy()) soon after a commit,
// when no caller waits, the rest (Filesystem::close_gaps()) when no commit has come for seconds.
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
  /// rest() runs when no further commit has come for so long after tidy().
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
  /// Waits for a commit, and calls rest() if none comes for kIdle.
  void wait_for_commit(std::unique_lock<std::mutex>& lock);

  const Work work_;
  Clock& clock_;
  std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable wakes_;
  bool is_due_ = false;
  bool has_rest_ = false;  // rest() has not run since tidy()
  bool has_more_ = false;  // another commit came during the wait for quiet
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
