// The lock of a pending content: everybody alone, but writes to different places of it side by side, and
// readers beside a commit.
//
// A write that may go beside others takes the lock beside them, notes what it is about to do, and steps aside
// while it does it:
//
//     lock_beside()  ->  step_aside()  ->  rejoin()  ->  unlock()
//     alone, but for     the next one      as at the
//     those aside        may come          beginning
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>

#include "core/base/byte_range.h"

namespace stfs {

/// Meets BasicLockable. Not recursive.
class ContentLock {
 public:
  void lock();
  void unlock();

  /// Waits for writes to the same place, for room among those aside, and for whoever waits to be alone.
  void lock_beside(ByteRange range);
  /// Lets others in, but to that place: unlocked, and nobody is alone before rejoin().
  void step_aside(ByteRange range);
  void rejoin(ByteRange range);

  /// For the holder: readers come in beside it, until it sends them out. It changes nothing meanwhile.
  void admit_readers();
  /// Waits for readers that are inside. Does nothing where none were admitted.
  void send_readers_out();
  /// Holds the lock for reading: beside a holder that admits readers, else alone.
  class Reading {
   public:
    explicit Reading(ContentLock& lock) : lock_(lock), is_alone_(lock.begin_reading()) {}
    ~Reading() { is_alone_ ? lock_.unlock() : lock_.end_reading(); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    ContentLock& lock_;
    const bool is_alone_;
  };

 private:
  /// True where the lock is held alone now.
  bool begin_reading();
  void end_reading();
  [[nodiscard]] std::span<const ByteRange> beside() const { return std::span(beside_).first(beside_count_); }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool is_held_ = false;
  unsigned waiting_ = 0;  // to be alone
  bool admits_readers_ = false;
  unsigned readers_ = 0;
  // Disjoint. Each keeps a thread of the mount's: one writer of a slow disk must not have them all.
  static constexpr std::size_t kMostBeside = 4;
  std::array<ByteRange, kMostBeside> beside_;
  std::size_t beside_count_ = 0;
};

}  // namespace stfs
