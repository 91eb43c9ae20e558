// One mutex, one condition.
#include "fs/content_lock.h"

#include <algorithm>

namespace stfs {

void ContentLock::lock() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.wait(lock, [this] { return !is_held_ && beside_.empty(); });
  --waiting_;
  is_held_ = true;
}

void ContentLock::unlock() {
  {
    const std::scoped_lock lock(mutex_);
    is_held_ = false;
  }
  changed_.notify_all();
}

void ContentLock::lock_beside(ByteRange range) {
  std::unique_lock lock(mutex_);
  const auto is_free = [&] {
    return std::ranges::none_of(beside_, [&](ByteRange other) { return !other.intersection(range).empty(); });
  };
  changed_.wait(lock, [&] { return !is_held_ && waiting_ == 0 && is_free(); });
  beside_.reserve(beside_.size() + 1);
  is_held_ = true;
}

void ContentLock::step_aside(ByteRange range) {
  {
    const std::scoped_lock lock(mutex_);
    beside_.push_back(range);
    is_held_ = false;
  }
  changed_.notify_all();
}

void ContentLock::rejoin(ByteRange range) {
  std::unique_lock lock(mutex_);
  // Whoever waits to be alone waits for us too.
  changed_.wait(lock, [this] { return !is_held_; });
  is_held_ = true;
  beside_.erase(std::ranges::find(beside_, range));
}

}  // namespace stfs
