// Requests that may wait: for the disk, for another process's lock, for another writer of the same tensor.
//
// Each request holds a thread of the session until it is answered. Where all of these threads wait, nobody
// serves a `stat` or a read of somebody who waits for nothing. So at most half of the session's threads may
// wait; what comes on top runs on threads of its own, which the session does not have.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace stfs {

/// Any thread may call.
class SlowRequests {
 public:
  /// Threads of its own; further requests queue for them.
  static constexpr std::size_t kMostThreads = 256;

  /// @param session_threads  that serve requests.
  explicit SlowRequests(unsigned session_threads) : most_here_(session_threads / 2) {}
  ~SlowRequests() { stop(); }
  SlowRequests(const SlowRequests&) = delete;
  SlowRequests& operator=(const SlowRequests&) = delete;

  /// Runs work() on the caller's thread where that may wait; else what keep(work) returns, on a thread of its
  /// own.
  /// @param keep  makes a std::function<void()> that does not refer to the request's buffers.
  template <class Work, class Keep>
  void run(const Work& work, const Keep& keep) {
    if (here_.fetch_add(1, std::memory_order_relaxed) < most_here_) {
      work();
      here_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    here_.fetch_sub(1, std::memory_order_relaxed);
    try {
      run_elsewhere(keep());
    } catch (const std::bad_alloc&) {
      work();
    }
  }
  /// Works off what is queued, then ends the threads.
  void stop();

 private:
  void run_elsewhere(std::function<void()> work);
  void serve();

  const unsigned most_here_;
  std::atomic<unsigned> here_ = 0;
  std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable wakes_;
  std::deque<std::function<void()>> queue_;
  std::size_t idle_ = 0;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace stfs
