// The lock of a pending file. The lock is exclusive, with two exceptions: writes to different places run
// in parallel, and readers may enter while a commit holds the lock.
//
// A parallel write takes the lock with lock_beside(), notes its bytes in the stage, and steps aside while it
// writes them:
//
//     lock_beside()          ->  step_aside()     ->  rejoin()               ->  unlock()
//     alone, except for          other writes         alone again, except
//     writes that are aside      may enter            for writes that are aside
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/mutex.h"

namespace stfs {

/// Not recursive. Clang does not analyze the functions that take or release it.
class CAPABILITY("content_lock") ContentLock {
 public:
  void lock() ACQUIRE();
  /// Takes the lock if no thread holds it or waits for it. Never waits for a holder.
  bool try_lock() TRY_ACQUIRE(true);
  void unlock() RELEASE();

  /// Takes the lock for a write to this range. Waits while another write to an overlapping range is aside,
  /// while kMostBeside writes are aside, and while any thread waits to hold the lock alone.
  void lock_beside(ByteRange range) ACQUIRE();
  /// Releases the lock for writes to other ranges. lock() waits until rejoin().
  void step_aside(ByteRange range) RELEASE();
  /// Takes the lock again, and gives up the range.
  void rejoin(ByteRange range) ACQUIRE();

  /// The holder calls this to let readers in until send_readers_out(). While readers may enter, the holder
  /// must not change the content.
  void admit_readers();
  /// Lets no new readers in, and waits until the readers inside have left. Does nothing if none were
  /// admitted.
  void send_readers_out();
  /// Holds the lock for reading: together with a holder that admits readers, otherwise alone.
  class SCOPED_CAPABILITY Reading {
   public:
    explicit Reading(ContentLock& lock) ACQUIRE_SHARED(lock) : lock_(lock), is_alone_(lock.begin_reading()) {}
    ~Reading() RELEASE_GENERIC() { is_alone_ ? lock_.unlock() : lock_.end_reading(); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    ContentLock& lock_;
    const bool is_alone_;
  };

 private:
  /// @return true if the caller now holds the lock alone.
  bool begin_reading();
  void end_reading();
  [[nodiscard]] std::span<const ByteRange> beside() const REQUIRES(mutex_) {
    return std::span(beside_).first(beside_count_);
  }

  Mutex mutex_;
  Condition changed_;
  bool is_held_ GUARDED_BY(mutex_) = false;
  unsigned waiting_ GUARDED_BY(mutex_) = 0;  // threads that wait to hold the lock alone
  bool admits_readers_ GUARDED_BY(mutex_) = false;
  unsigned readers_ GUARDED_BY(mutex_) = 0;
  // The ranges of writes that are aside; disjoint. Each write occupies a thread of the mount, and one writer
  // to a slow disk must not occupy all threads.
  static constexpr std::size_t kMostBeside = 4;
  std::array<ByteRange, kMostBeside> beside_ GUARDED_BY(mutex_);
  std::size_t beside_count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
