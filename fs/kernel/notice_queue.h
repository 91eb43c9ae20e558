// A queue of jobs, and the thread that runs them in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "core/base/mutex.h"

namespace stfs {

/// Any thread may call.
class NoticeQueue {
 public:
  using Job = std::function<void()>;

  NoticeQueue() = default;
  ~NoticeQueue() { stop(); }
  NoticeQueue(const NoticeQueue&) = delete;
  NoticeQueue& operator=(const NoticeQueue&) = delete;

  /// @param name  the thread's name, of at most 15 characters: for debuggers, and for tests.
  void start(const char* name);
  /// Queues a job. Runs it at once if the thread has ended, because a caller may be waiting for the job.
  void run(Job job);
  /// Queues a job that runs when no other job is queued.
  void run_when_idle(Job job);
  /// Runs the next job on the caller's thread. Use it if start() was not called.
  /// @return false if nothing is queued.
  bool do_next();
  /// True if all jobs are done.
  [[nodiscard]] bool is_idle();
  /// Waits until the jobs that were queued earlier are done, or until one job has taken all of this time.
  /// After this time no call waits for that job again. Does not wait if start() was not called.
  /// @return false if this call is the first to find such a job.
  [[nodiscard]] bool wait_for_queued(std::chrono::milliseconds patience);
  /// Makes the thread end when all jobs are done. @return false if the thread has not ended in this time.
  bool finish_within(std::chrono::milliseconds patience);
  /// Drops the queued jobs. The thread may be in a job that never ends. In this case the queue must not be
  /// destroyed.
  void give_up();
  /// Finishes the queued jobs, then ends the thread. Drops them if the thread was never started.
  void stop();

 private:
  void serve(const char* name);
  /// Runs the next job. Releases the mutex during the job.
  void do_next_job() REQUIRES(mutex_);

  Mutex mutex_;  // no function is called with it held
  Condition wakes_;
  Condition done_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  std::deque<Job> idle_jobs_ GUARDED_BY(mutex_);
  std::uint64_t queued_ GUARDED_BY(mutex_) = 0;                // jobs ever added to jobs_
  std::uint64_t finished_ GUARDED_BY(mutex_) = 0;              // jobs of jobs_ that have ended
  std::optional<std::uint64_t> held_up_ GUARDED_BY(mutex_){};  // finished_ when a wait timed out
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  bool is_done_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stfs
