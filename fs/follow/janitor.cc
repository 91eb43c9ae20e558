// The thread waits for a commit, then until commits pause, and then calls tidy(). After a longer pause it
// calls rest().
#include "fs/follow/janitor.h"

#include "core/base/mutex.h"
#include "fs/base/log.h"
#include "fs/base/survive.h"

namespace stfs {

Janitor::Clock& Janitor::Clock::real() {
  static Clock clock;
  return clock;
}

void Janitor::start() {
  thread_ = std::thread([this] { serve(); });
}

void Janitor::note_commit() {
  const MutexLock lock(mutex_);
  has_more_ = true;
  // Wake the thread once per series of commits: each wake-up delays the next commit a little.
  if (std::exchange(is_due_, true)) return;
  wakes_.notify_one();
}

void Janitor::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  wakes_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Janitor::wait_for_commit() {
  const auto is_over = [this]() REQUIRES(mutex_) { return is_stopping_ || is_due_; };
  if (std::exchange(has_rest_, false)) {
    clock_.wait_for(mutex_, wakes_, kIdle, is_over);
    if (!is_over()) {
      mutex_.unlock();
      survive("janitor", work_.rest);
      mutex_.lock();
    }
  }
  wakes_.wait(mutex_, is_over);
}

void Janitor::serve() {
  MutexLock lock(mutex_);
  for (;;) {
    wait_for_commit();
    const auto latest = clock_.now() + kLongest;
    do {
      has_more_ = false;
      clock_.wait_for(mutex_, wakes_, kQuiet, [this]() REQUIRES(mutex_) { return is_stopping_; });
    } while (has_more_ && !is_stopping_ && clock_.now() < latest);
    if (is_stopping_) return;
    is_due_ = false;
    lock.unlock();
    const bool is_tidy = survive("janitor", work_.tidy);
    lock.lock();
    has_rest_ = static_cast<bool>(work_.rest);
    is_due_ = is_due_ || !is_tidy;  // tries again
  }
}

}  // namespace stfs
