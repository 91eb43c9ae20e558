// The lock of a pending content: everybody alone, but writes to different places of it side by side.
//
// A write that may go beside others takes the lock beside them, notes what it is about to do, and steps aside
// while it does it:
//
//     lock_beside()  ->  step_aside()  ->  rejoin()  ->  unlock()
//     alone, but for     the next one      as at the
//     those aside        may come          beginning
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "core/byte_range.h"

namespace stfs {

/// Meets BasicLockable. Not recursive.
class ContentLock {
 public:
  void lock();
  void unlock();

  /// Waits for writes to the same place, and for whoever waits to be alone. May throw std::bad_alloc,
  /// unlocked.
  void lock_beside(ByteRange range);
  /// Lets others in, but to that place: unlocked, and nobody is alone before rejoin().
  void step_aside(ByteRange range);
  void rejoin(ByteRange range);

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool is_held_ = false;
  unsigned waiting_ = 0;           // to be alone
  std::vector<ByteRange> beside_;  // disjoint; has room for one more while it is held beside
};

}  // namespace stfs
