// The progress of a long operation, which its caller can follow and stop.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/error.h"

namespace stfs {

/// The caller owns it, passes it to one operation at a time, and keeps it until the operation returns. An
/// operation consists of passes, each over a number of bytes. Any thread may call any function, but begin(),
/// which the operation calls while none of its threads works.
class Work {
 public:
  /// Runs on the thread that made the Work, so it may touch what that thread owns: with 0 bytes when a pass
  /// begins, then at most every 20 ms, and when the pass ends. False stops the work, as stop() does. After
  /// that the watch does not run again.
  using Watch = std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  Work() = default;
  explicit Work(Watch watch) : watch_(std::move(watch)) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // For the caller:

  /// Asks the operation to stop. The operation and all later ones fail with EINTR or ECANCELED.
  void stop() { is_stopped_ = true; }
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }
  /// The progress of the current pass, in bytes.
  [[nodiscard]] std::uint64_t done_bytes() const { return done_bytes_; }
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

  // For the operation:

  /// Begins a pass.
  void begin(std::uint64_t total_bytes);
  /// Adds to the progress of the pass. Costs an addition, and a look at the clock on the watch's thread.
  /// @return goes_on().
  bool advance(std::uint64_t bytes) {
    done_bytes_ += bytes;
    if (watch_ && std::this_thread::get_id() == thread_) look_if_due();
    return goes_on();
  }
  /// Subtracts bytes that the operation must process again.
  void take_back(std::uint64_t bytes) { done_bytes_ -= bytes; }
  /// False once the work is stopped or the pass is abandoned. Each thread of the operation then returns
  /// early.
  [[nodiscard]] bool goes_on() const { return !is_stopped_ && !is_abandoned_; }
  /// Ends the pass for the other threads of the operation, because one of them has failed.
  void abandon() { is_abandoned_ = true; }
  /// Runs the watch, if this is its thread. An operation calls it at the end of a pass.
  void look();

 private:
  using Clock = std::chrono::steady_clock;
  void look_if_due();

  const Watch watch_{};
  const std::thread::id thread_ = std::this_thread::get_id();
  Clock::time_point looked_{};  // only for the watch's thread
  std::atomic<std::uint64_t> done_bytes_ = 0;
  std::atomic<std::uint64_t> total_bytes_ = 0;
  std::atomic<bool> is_stopped_ = false;
  std::atomic<bool> is_abandoned_ = false;
};

/// Does one pass of several jobs, after Work::begin(). Calls job(index, worker) as run_parallel() does, until
/// the work is stopped or a job fails. With several threads the calling thread only runs the watch. Once
/// goes_on() is false, a job may fail or leave work undone: that is not reported.
/// @return the failure of a job. If work.is_stopped(), some jobs have not run, or have not run to their end.
Result<void> run_watched(std::size_t count, std::uint64_t threads, Work& work,
                         const std::function<Result<void>(std::size_t index, unsigned worker)>& job);

}  // namespace stfs
