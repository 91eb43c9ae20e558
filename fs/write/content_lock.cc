// Implements the content's lock with one mutex and one condition variable.
#include "fs/write/content_lock.h"

#include <algorithm>

namespace stfs {

void ContentLock::lock() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.wait(lock, [this] { return !is_held_ && beside_count_ == 0; });
  --waiting_;
  is_held_ = true;
}

bool ContentLock::try_lock() {
  const std::scoped_lock lock(mutex_);
  if (is_held_ || beside_count_ != 0 || waiting_ != 0) return false;
  is_held_ = true;
  return true;
}

void ContentLock::unlock() {
  {
    const std::scoped_lock lock(mutex_);
    is_held_ = false;
  }
  changed_.notify_all();
}

void ContentLock::admit_readers() {
  {
    const std::scoped_lock lock(mutex_);
    admits_readers_ = true;
  }
  changed_.notify_all();
}

void ContentLock::send_readers_out() {
  std::unique_lock lock(mutex_);
  admits_readers_ = false;
  changed_.wait(lock, [this] { return readers_ == 0; });
}

bool ContentLock::begin_reading() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.wait(lock, [this] { return admits_readers_ || (!is_held_ && beside_count_ == 0); });
  --waiting_;
  if (!admits_readers_) return is_held_ = true;
  ++readers_;
  return false;
}

void ContentLock::end_reading() {
  {
    const std::scoped_lock lock(mutex_);
    --readers_;
  }
  changed_.notify_all();
}

void ContentLock::lock_beside(ByteRange range) {
  std::unique_lock lock(mutex_);
  const auto is_free = [&] {
    return std::ranges::none_of(beside(),
                                [&](ByteRange other) { return !other.intersection(range).empty(); });
  };
  changed_.wait(lock, [&] { return !is_held_ && waiting_ == 0 && beside_count_ < kMostBeside && is_free(); });
  is_held_ = true;
}

void ContentLock::step_aside(ByteRange range) {
  {
    const std::scoped_lock lock(mutex_);
    beside_[beside_count_++] = range;
    is_held_ = false;
  }
  changed_.notify_all();
}

void ContentLock::rejoin(ByteRange range) {
  std::unique_lock lock(mutex_);
  // Waits for the holder only. Threads that wait to be alone wait for this write.
  changed_.wait(lock, [this] { return !is_held_; });
  is_held_ = true;
  *std::ranges::find(beside_, range) = beside_[--beside_count_];
}

}  // namespace stfs
