// Whose turn it is to commit to a shard.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "core/base/byte_range.h"

namespace stfs {

/// A mutex whose holder can lend it. A large commit lends its turn from time to time: small commits of other
/// blocks need not wait for its end (core/commit/commit_protocol.h). All other threads wait until the turn is
/// free and nobody has lent it, so at most one thread lends at a time. Meets Lockable. Not recursive.
class CommitTurn {
 public:
  void lock();
  bool try_lock();
  void unlock();
  /// Takes the turn also while another thread lends it, unless that thread has some of these blocks.
  /// @param blocks  whole blocks; may be empty.
  /// @return whether another thread lends it.
  bool lock_beside(ByteRange blocks);
  /// The holder lets in threads that wait in lock_beside() with other blocks, one after the other. Returns
  /// with the turn: as soon as the work is done; without work, when as many have had it as waited at first.
  /// @param work  may be empty. Runs without the turn. Must not throw.
  /// @return whether another thread has had it.
  bool lend(ByteRange blocks, const std::function<void()>& work);

 private:
  /// A thread in lock_beside(), on its stack.
  struct Waiting {
    ByteRange blocks;
    Waiting* next = nullptr;
  };
  [[nodiscard]] bool admits(ByteRange blocks) const;

  std::mutex mutex_;  // guards the members below; no other lock is taken while it is held
  std::condition_variable changed_;
  bool is_held_ = false;
  std::optional<ByteRange> lent_;  // with these blocks
  unsigned admitted_ = 0;          // threads that may still enter while it is lent
  bool has_entered_ = false;       // a thread has
  Waiting* waiting_ = nullptr;
};

}  // namespace stfs
