// Does what a commit leaves to be done, when nobody waits for it any more: a thread that wakes some time
// after a commit (Filesystem::tidy()).
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
  /// The time that passes between commits. A test has a clock of its own.
  class Clock {
   public:
    virtual ~Clock() = default;
    virtual std::chrono::steady_clock::time_point now() { return std::chrono::steady_clock::now(); }
    /// Waits for that time, or until is_over() is true; what makes it true notifies `wakes`.
    virtual void wait_for(std::unique_lock<std::mutex>& lock, std::condition_variable& wakes,
                          std::chrono::milliseconds time, const std::function<bool()>& is_over) {
      wakes.wait_for(lock, time, is_over);
    }
    static Clock& real();
  };
  static constexpr std::chrono::milliseconds kQuiet{20};
  static constexpr std::chrono::milliseconds kLongest{200};

  /// The clock must outlive stop().
  explicit Janitor(std::function<void()> tidy, Clock& clock = Clock::real())
      : tidy_(std::move(tidy)), clock_(clock) {}
  ~Janitor() { stop(); }
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  void start();
  /// From any thread: tidy() is due when no further commit comes for kQuiet, or kLongest after the first.
  void note_commit();
  /// Ends the thread; what is due by then is left to the caller.
  void stop();

 private:
  void serve();

  const std::function<void()> tidy_;
  Clock& clock_;
  std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable wakes_;
  bool is_due_ = false;
  bool has_more_ = false;  // a commit came while we were waiting for none
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
