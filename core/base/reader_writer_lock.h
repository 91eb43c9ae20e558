// A shared mutex that lets a waiting writer in.
//
// std::shared_mutex is glibc's rwlock of the default kind: there, overlapping readers keep a writer out for
// ever. Readers of a popular tensor do overlap, and a commit must not wait until they pause.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "core/base/mutex.h"

namespace stfs {

/// Meets the requirements of std::unique_lock and std::shared_lock. Not recursive, not even for readers.
class CAPABILITY("reader_writer_lock") ReaderWriterLock {
 public:
  ReaderWriterLock() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~ReaderWriterLock() {
    pthread_rwlock_destroy(&lock_);
  }
  ReaderWriterLock(const ReaderWriterLock&) = delete;
  ReaderWriterLock& operator=(const ReaderWriterLock&) = delete;

  void lock() ACQUIRE() {
    pthread_rwlock_wrlock(&lock_);
    turns_.fetch_add(1);
  }
  void unlock() RELEASE() {
    turns_.fetch_add(1);
    pthread_rwlock_unlock(&lock_);
  }
  void lock_shared() ACQUIRE_SHARED() {
    pthread_rwlock_rdlock(&lock_);
  }
  void unlock_shared() RELEASE_SHARED() {
    pthread_rwlock_unlock(&lock_);
  }
  /// Odd while a writer holds the lock, and larger afterwards. Long work that must not keep a writer out
  /// reads without the lock, and starts again if the number has changed.
  [[nodiscard]] std::uint64_t turns() const {
    return turns_.load();
  }

 private:
  pthread_rwlock_t lock_;
  std::atomic<std::uint64_t> turns_ = 0;
};

}  // namespace stfs
