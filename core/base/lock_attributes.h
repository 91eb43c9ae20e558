// Attributes that declare locks to clang (-Wthread-safety). core/base/mutex.h has the locks and an example.
#pragma once

#ifdef __clang__
#define STFS_CHECKED_LOCK(attribute) __attribute__((attribute))
#else
#define STFS_CHECKED_LOCK(attribute)
#endif

// Types: a lock, and an object that holds a lock as long as it lives.
#define CAPABILITY(name) STFS_CHECKED_LOCK(capability(name))
#define SCOPED_CAPABILITY STFS_CHECKED_LOCK(scoped_lockable)
// Members.
#define GUARDED_BY(lock) STFS_CHECKED_LOCK(guarded_by(lock))
#define ACQUIRED_BEFORE(...) STFS_CHECKED_LOCK(acquired_before(__VA_ARGS__))
// Functions whose caller holds the lock.
#define REQUIRES(...) STFS_CHECKED_LOCK(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) STFS_CHECKED_LOCK(requires_shared_capability(__VA_ARGS__))
// Functions that take and release locks.
#define ACQUIRE(...) STFS_CHECKED_LOCK(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) STFS_CHECKED_LOCK(acquire_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) STFS_CHECKED_LOCK(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) STFS_CHECKED_LOCK(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) STFS_CHECKED_LOCK(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) STFS_CHECKED_LOCK(release_generic_capability(__VA_ARGS__))
// Functions that clang cannot follow. A comment says why.
#define NO_THREAD_SAFETY_ANALYSIS STFS_CHECKED_LOCK(no_thread_safety_analysis)
