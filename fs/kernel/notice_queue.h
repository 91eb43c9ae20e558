// A queue of jobs, and the thread that does them in the order in which they came.
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
  /// Queues a job. Does it at once if the thread has ended, because somebody may be waiting for it.
  void run(Job job);
  /// Queues a job that is done when no other one is queued.
  void run_when_idle(Job job);
  /// Does the next job on the caller's thread. Use it if start() was not called.
  /// @return false if nothing is queued.
  bool do_next();
  /// True if all jobs are done.
  [[nodiscard]] bool is_idle();
  /// Waits until the jobs that were queued before are done, or until one job has taken all of that time: then
  /// nobody waits for that job again. Does not wait if start() was not called.
  /// @return false if it is the first to find such a job.
  [[nodiscard]] bool wait_for_queued(std::chrono::milliseconds patience);
  /// The thread ends when all jobs are done. @return false if it has not ended in that time.
  bool finish_within(std::chrono::milliseconds patience);
  /// Drops what is queued. The thread may be in a job that never ends: then the queue must not be destroyed.
  void give_up();
  /// Finishes the queued jobs, then ends the thread. Drops them if the thread was never started.
  void stop();

 private:
  void serve(const char* name);
  /// Does the next job. Releases the mutex during the job.
  void do_next_job() REQUIRES(mutex_);

  Mutex mutex_;  // nothing is called with it held
  Condition wakes_;
  Condition done_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  std::deque<Job> idle_jobs_ GUARDED_BY(mutex_);
  std::uint64_t queued_ GUARDED_BY(mutex_) = 0;                // jobs of jobs_, ever
  std::uint64_t finished_ GUARDED_BY(mutex_) = 0;              // of them
  std::optional<std::uint64_t> held_up_ GUARDED_BY(mutex_){};  // finished_ when somebody has waited in vain
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  bool is_done_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stfs
