// The turn to commit to a shard.
#pragma once

#include <functional>
#include <optional>

#include "core/base/byte_range.h"
#include "core/base/mutex.h"

namespace stfs {

/// A mutex whose holder can lend it. A large commit lends its turn from time to time, so that small commits
/// of other blocks need not wait for its end (core/commit/commit_protocol.h). All other threads wait until
/// the turn is free and not lent, so at most one thread lends at a time. Meets Lockable. Not recursive.
class CommitTurn {
 public:
  void lock();
  bool try_lock();
  void unlock();
  /// Takes the turn. Also takes it while another thread lends it, unless that thread has some of these
  /// blocks.
  /// @param blocks  whole blocks; may be empty.
  /// @return true if another thread lends the turn.
  bool lock_beside(ByteRange blocks);
  /// Called by the holder. Lets in threads that wait in lock_beside() with other blocks, one after the other.
  /// Returns with the turn: as soon as the work is done, or, without work, when as many threads have had the
  /// turn as waited at first.
  /// @param work  may be empty. Runs without the turn. Must not throw.
  /// @return true if another thread has had the turn.
  bool lend(ByteRange blocks, const std::function<void()>& work);

 private:
  /// A thread in lock_beside(), on its stack.
  struct Waiting {
    ByteRange blocks;
    Waiting* next = nullptr;
  };
  [[nodiscard]] bool admits(ByteRange blocks) const REQUIRES(mutex_);

  Mutex mutex_;  // no other lock is taken while it is held
  Condition changed_;
  bool is_held_ GUARDED_BY(mutex_) = false;
  std::optional<ByteRange> lent_ GUARDED_BY(mutex_);  // the blocks of the holder that lends it
  unsigned admitted_ GUARDED_BY(mutex_) = 0;          // threads that may still enter while it is lent
  bool has_entered_ GUARDED_BY(mutex_) = false;       // a thread has entered
  Waiting* waiting_ GUARDED_BY(mutex_) = nullptr;
};

}  // namespace stfs
