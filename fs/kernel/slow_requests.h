// Runs requests that may wait: for the disk, another process's lock, or another writer of the same tensor.
//
// Each request occupies a thread of the session until its reply. If all of these threads waited, no thread
// could serve a `stat` or a read, which wait for nothing. So at most half of the session's threads may wait.
// Further slow requests run on threads of this class.
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
  /// The greatest number of threads of this class. Further requests queue for them.
  static constexpr std::size_t kMostThreads = 256;

  /// @param session_threads  the number of threads that serve the session's requests.
  explicit SlowRequests(unsigned session_threads) : most_here_(session_threads / 2) {}
  ~SlowRequests() { stop(); }
  SlowRequests(const SlowRequests&) = delete;
  SlowRequests& operator=(const SlowRequests&) = delete;

  /// Runs work() on the caller's thread if that thread may wait. Else runs the function that keep() returns,
  /// on a thread of this class.
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
  /// Finishes the queued requests, then ends the threads.
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
