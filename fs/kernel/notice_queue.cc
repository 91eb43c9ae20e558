// An exception in one job does not stop the later jobs.
#include "fs/kernel/notice_queue.h"

#include <pthread.h>

#include <utility>

#include "core/base/mutex.h"
#include "fs/base/survive.h"

namespace stfs {

void NoticeQueue::start(const char* name) {
  thread_ = std::thread([this, name] { serve(name); });
}

void NoticeQueue::run(Job job) {
  MutexLock lock(mutex_);
  if (is_done_) {
    lock.unlock();
    survive("invalidator", job);
    return;
  }
  jobs_.push_back(std::move(job));
  ++queued_;
  lock.unlock();
  wakes_.notify_one();
}

void NoticeQueue::run_when_idle(Job job) {
  {
    const MutexLock lock(mutex_);
    idle_jobs_.push_back(std::move(job));
  }
  wakes_.notify_one();
}

bool NoticeQueue::do_next() {
  const MutexLock lock(mutex_);
  if (jobs_.empty() && idle_jobs_.empty()) return false;
  do_next_job();
  return true;
}

bool NoticeQueue::is_idle() {
  const MutexLock lock(mutex_);
  return finished_ == queued_;
}

bool NoticeQueue::wait_for_queued(std::chrono::milliseconds patience) {
  const MutexLock lock(mutex_);
  if (!thread_.joinable()) return true;
  const std::uint64_t last = queued_;
  const std::uint64_t before = finished_;
  const auto is_over = [&]() REQUIRES(mutex_) {
    return finished_ >= last || is_done_ || held_up_ == finished_;
  };
  if (done_.wait_for(mutex_, patience, is_over) || finished_ != before) return true;
  held_up_ = finished_;
  done_.notify_all();
  return false;
}

bool NoticeQueue::finish_within(std::chrono::milliseconds patience) {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  wakes_.notify_one();
  return done_.wait_for(mutex_, patience, [this]() REQUIRES(mutex_) { return is_done_; });
}

void NoticeQueue::give_up() {
  const MutexLock lock(mutex_);
  jobs_.clear();
  idle_jobs_.clear();
}

void NoticeQueue::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  wakes_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void NoticeQueue::do_next_job() {
  const bool is_idle = jobs_.empty();
  std::deque<Job>& from = is_idle ? idle_jobs_ : jobs_;
  {
    const Job job = std::move(from.front());
    from.pop_front();
    mutex_.unlock();
    survive("invalidator", job);
  }
  mutex_.lock();
  if (is_idle) return;
  ++finished_;
  done_.notify_all();
}

void NoticeQueue::serve(const char* name) {
  pthread_setname_np(pthread_self(), name);
  const MutexLock lock(mutex_);
  for (;;) {
    wakes_.wait(mutex_,
                [this]() REQUIRES(mutex_) { return is_stopping_ || !jobs_.empty() || !idle_jobs_.empty(); });
    if (jobs_.empty() && is_stopping_) {
      is_done_ = true;
      done_.notify_all();
      return;
    }
    do_next_job();
  }
}

}  // namespace stfs
