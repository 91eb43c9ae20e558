// Excludes readers for the two moments of a commit in which the place that they read from changes.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "core/base/reader_writer_lock.h"

namespace stfs {

/// Excludes the readers of every touched tensor while the place changes that they read from. A lock that
/// several tensors share is taken once. All locks are taken in one order. Nothing waits for the disk while
/// readers are excluded.
class ReadersOut {
 public:
  void add(ReaderWriterLock& lock) { locks_.push_back(&lock); }
  /// Call this after the last add(). The calls after it need no memory.
  void make_ready() {
    std::ranges::sort(locks_);
    locks_.erase(std::unique(locks_.begin(), locks_.end()), locks_.end());
    held_.reserve(locks_.size());
  }
  /// Takes the locks, calls `change`, releases them.
  template <class Change>
  void during(const Change& change) {
    for (ReaderWriterLock* lock : locks_) held_.emplace_back(*lock);
    change();
    held_.clear();
  }

 private:
  std::vector<ReaderWriterLock*> locks_;
  std::vector<std::unique_lock<ReaderWriterLock>> held_;
};

}  // namespace stfs
