// Keeps a queue, and as many threads as were ever needed at the same time.
#include "fs/kernel/slow_requests.h"

#include <system_error>
#include <utility>

namespace stfs {

void SlowRequests::run_elsewhere(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  if (queue_.size() >= idle_ && threads_.size() < kMostThreads && !is_stopping_) {
    try {
      threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // then an existing thread does the work
    }
  }
  if (threads_.empty() || is_stopping_) {
    lock.unlock();
    return work();
  }
  queue_.push_back(std::move(work));
  lock.unlock();
  wakes_.notify_one();
}

void SlowRequests::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wakes_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

void SlowRequests::stop() {
  std::vector<std::thread> ending;
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
    ending = std::exchange(threads_, {});
  }
  wakes_.notify_all();
  for (std::thread& thread : ending) thread.join();
}

}  // namespace stfs
