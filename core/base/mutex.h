// Locks that clang checks (-Wthread-safety): a member says which lock guards it, and a function which lock
// its caller holds. .ci/check_locks compiles all code that uses locks, and fails where one is forgotten.
//
//     Mutex mutex_;
//     std::deque<Job> jobs_ GUARDED_BY(mutex_);
//     void do_next() REQUIRES(mutex_);              // the caller holds the mutex
//     const MutexLock lock(mutex_);                 // holds it to the end of the block
//
// Clang checks each lambda by itself. Annotate a lambda that runs with the lock held:
//
//     wakes_.wait(mutex_, [this]() REQUIRES(mutex_) { return !jobs_.empty(); });
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "core/base/lock_attributes.h"

namespace stfs {

/// A std::mutex.
class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

/// A std::shared_mutex. Where readers overlap without a pause, use ReaderWriterLock.
class CAPABILITY("shared_mutex") SharedMutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  void lock_shared() ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

/// Holds a lock of any kind exclusively. Its owner may release the lock and take it again.
template <class Lock>
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Lock& held) ACQUIRE(held) : lock_(held) {}
  ~MutexLock() RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() ACQUIRE() { lock_.lock(); }
  void unlock() RELEASE() { lock_.unlock(); }

 private:
  std::unique_lock<Lock> lock_;
};

/// Holds a lock together with other readers.
template <class Lock>
class SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(Lock& held) ACQUIRE_SHARED(held) : lock_(held) {}
  ~SharedLock() RELEASE_GENERIC() {}
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  std::shared_lock<Lock> lock_;
};

/// A std::condition_variable. A wait releases the mutex, and takes it again before it asks `is_over` and
/// before it returns.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  // Clang does not know that the mutex of `is_over` is this one.
  template <class Predicate>
  void wait(Mutex& mutex, Predicate is_over) REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    Adopted lock(mutex.mutex_);
    condition_.wait(lock.held, is_over);
  }
  /// @return the result of `is_over`.
  template <class Predicate>
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds longest, Predicate is_over)
      REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    Adopted lock(mutex.mutex_);
    return condition_.wait_for(lock.held, longest, is_over);
  }

 private:
  /// Leaves the mutex to the caller at the end, also when `is_over` throws.
  struct Adopted {
    explicit Adopted(std::mutex& mutex) : held(mutex, std::adopt_lock) {}
    ~Adopted() { held.release(); }
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;
    std::unique_lock<std::mutex> held;
  };
  std::condition_variable condition_;
};

}  // namespace stfs
