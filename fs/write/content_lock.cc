#include "fs/write/content_lock.h"

#include <algorithm>

#include "core/base/mutex.h"

namespace stfs {

void ContentLock::lock() {
  const MutexLock lock(mutex_);
  ++waiting_;
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return !is_held_ && beside_count_ == 0; });
  --waiting_;
  is_held_ = true;
}

bool ContentLock::try_lock() {
  const MutexLock lock(mutex_);
  if (is_held_ || beside_count_ != 0 || waiting_ != 0) return false;
  is_held_ = true;
  return true;
}

void ContentLock::unlock() {
  {
    const MutexLock lock(mutex_);
    is_held_ = false;
  }
  changed_.notify_all();
}

void ContentLock::admit_readers() {
  {
    const MutexLock lock(mutex_);
    admits_readers_ = true;
  }
  changed_.notify_all();
}

void ContentLock::send_readers_out() {
  const MutexLock lock(mutex_);
  admits_readers_ = false;
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return readers_ == 0; });
}

bool ContentLock::begin_reading() {
  const MutexLock lock(mutex_);
  ++waiting_;
  changed_.wait(mutex_,
                [this]() REQUIRES(mutex_) { return admits_readers_ || (!is_held_ && beside_count_ == 0); });
  --waiting_;
  if (!admits_readers_) return is_held_ = true;
  ++readers_;
  return false;
}

void ContentLock::end_reading() {
  {
    const MutexLock lock(mutex_);
    --readers_;
  }
  changed_.notify_all();
}

void ContentLock::lock_beside(ByteRange range) {
  const MutexLock lock(mutex_);
  const auto is_free = [&]() REQUIRES(mutex_) {
    return std::ranges::none_of(beside(),
                                [&](ByteRange other) { return !other.intersection(range).empty(); });
  };
  changed_.wait(mutex_, [&]() REQUIRES(mutex_) {
    return !is_held_ && waiting_ == 0 && beside_count_ < kMostBeside && is_free();
  });
  is_held_ = true;
}

void ContentLock::step_aside(ByteRange range) {
  {
    const MutexLock lock(mutex_);
    beside_[beside_count_++] = range;
    is_held_ = false;
  }
  changed_.notify_all();
}

void ContentLock::rejoin(ByteRange range) {
  const MutexLock lock(mutex_);
  // Waits for the holder only. Threads that wait to be alone wait for this write.
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return !is_held_; });
  is_held_ = true;
  *std::ranges::find(beside_, range) = beside_[--beside_count_];
}

}  // namespace stfs
