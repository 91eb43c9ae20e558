// Runs requests that may wait: for the disk, another process's lock, or another writer of the same tensor.
//
// Each request occupies a thread of the session until its reply. If all of these threads waited, no thread
// could serve requests that never wait, such as `stat` or a read. Therefore at most half of the session's
// threads may wait. Further slow requests are queued and run on threads of this class.
//
// Each user has a queue, and the users take turns. A user gets another thread only while more threads are
// free than the user has. Therefore one user has at most half of the threads. A user without a running
// request does not wait for the requests of others, unless many users fill the threads at the same time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {

/// Any thread may call.
class SlowRequests {
 public:
  struct Request {
    uid_t user;
    std::function<void()> work{};
    /// For take_back(). Null: the request cannot be taken back.
    const void* id = nullptr;
    /// Returns true if no program waits for the reply any more. Runs with the mutex held. May be empty.
    std::function<bool()> is_given_up{};
  };

  /// @param most_here     the greatest number of threads of the session that may wait
  /// @param most_threads  the greatest number of threads of this class. One user may have half of them. 0:
  ///                      all requests run on the caller's thread.
  SlowRequests(unsigned most_here, std::size_t most_threads)
      : most_here_(most_here), most_threads_(most_threads) {}
  ~SlowRequests() { stop(); }
  SlowRequests(const SlowRequests&) = delete;
  SlowRequests& operator=(const SlowRequests&) = delete;

  /// Runs work() on the caller's thread if that thread may wait. Otherwise runs the function that keep()
  /// returns, on a thread of this class.
  /// @param keep  makes a std::function<void()> that does not refer to the request's buffers.
  template <class Work, class Keep>
  void run(uid_t user, const Work& work, const Keep& keep) {
    if (here_.fetch_add(1, std::memory_order_relaxed) < most_here_) {
      work();
      here_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    here_.fetch_sub(1, std::memory_order_relaxed);
    std::function<void()> kept;
    try {
      kept = keep();
    } catch (const std::bad_alloc&) {
      return work();
    }
    run_elsewhere({.user = user, .work = std::move(kept)});
  }
  /// Runs the request on a thread of this class. Runs it on the caller's thread in these cases: it is given
  /// up, stop() was called, or memory or threads are missing.
  void run_elsewhere(Request request);
  /// Removes a request from its user's queue. @return its work; null if it is not in the queue any more.
  std::function<void()> take_back(uid_t user, const void* id);
  /// Finishes the queued requests, then ends the threads.
  void stop();

 private:
  struct User {
    std::deque<Request> queue{};
    std::size_t running = 0;
  };
  using Users = std::map<uid_t, User>;

  bool enqueue(Request& request) REQUIRES(mutex_);
  /// Returns the user whose request is the next to run, or the end.
  Users::iterator next_user() REQUIRES(mutex_);
  /// Wakes or starts a thread if a request may run.
  void call_thread() REQUIRES(mutex_);

  void serve();

  const unsigned most_here_;
  const std::size_t most_threads_;
  std::atomic<unsigned> here_ = 0;
  Mutex mutex_;  // with it held, is_given_up() is the only function that is called
  Condition wakes_;
  Users users_ GUARDED_BY(mutex_);     // users with queued or running requests
  uid_t last_ GUARDED_BY(mutex_) = 0;  // the user who had the last turn
  std::size_t running_ GUARDED_BY(mutex_) = 0;
  std::size_t idle_ GUARDED_BY(mutex_) = 0;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

}  // namespace stfs
