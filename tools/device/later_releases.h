// Frees memory of devices on a separate thread. The memory may be freed only when its device has finished its
// work, and no caller may have to wait for that: the caller's streams, or a capture of one, may be running.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "core/base/mutex.h"

namespace stfs::device {

/// Any thread may call.
class LaterReleases {
 public:
  /// The releases of this process.
  static LaterReleases& of_process();

  LaterReleases() = default;
  /// Waits for all releases.
  ~LaterReleases();
  LaterReleases(const LaterReleases&) = delete;
  LaterReleases& operator=(const LaterReleases&) = delete;

  /// Runs a release soon, after all earlier ones. The release must not throw. If the process has no thread or
  /// no memory left for that, or is a forked child, the call runs the release at once.
  void add(std::function<void()> release) noexcept;
  /// Returns when all releases that were added before the call have run. Called before memory is reported to
  /// be short.
  void wait();

 private:
  void work();

  [[nodiscard]] bool is_of_parent() const;

  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> waiting_ GUARDED_BY(mutex_);
  std::size_t added_ GUARDED_BY(mutex_) = 0;
  std::size_t done_ GUARDED_BY(mutex_) = 0;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // started by the first release
  /// The process of the thread; 0: none. A forked child has no thread, and the mutex may stay locked in it.
  std::atomic<pid_t> process_ = 0;
};

}  // namespace stfs::device
