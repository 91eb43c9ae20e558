// The thread waits for a commit, then waits until no more commits come, then tidies.
#include "fs/follow/janitor.h"

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
  const std::scoped_lock lock(mutex_);
  has_more_ = true;
  // Wake the thread once per series of commits: each wake-up delays the next commit a little.
  if (std::exchange(is_due_, true)) return;
  wakes_.notify_one();
}

void Janitor::stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
  }
  wakes_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Janitor::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wakes_.wait(lock, [this] { return is_stopping_ || is_due_; });
    const auto latest = clock_.now() + kLongest;
    do {
      has_more_ = false;
      clock_.wait_for(lock, wakes_, kQuiet, [this] { return is_stopping_; });
    } while (has_more_ && !is_stopping_ && clock_.now() < latest);
    if (is_stopping_) return;
    is_due_ = false;
    lock.unlock();
    const bool is_tidy = survive("janitor", tidy_);
    lock.lock();
    is_due_ = is_due_ || !is_tidy;  // tries again
  }
}

}  // namespace stfs
