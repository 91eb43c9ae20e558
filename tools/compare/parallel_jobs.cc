// A counter that threads take jobs from, and one thread that watches.
#include "tools/compare/parallel_jobs.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace stfs::tools {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};

class JobQueue {
 public:
  JobQueue(std::size_t count, const Job& job) : count_(count), job_(job) {}

  /// Runs jobs until the queue is empty or the status says stop.
  void work() {
    for (std::size_t next = next_++; next < count_ && !status_.is_stopped(); next = next_++) {
      job_(next, status_);
    }
    const std::scoped_lock lock(mutex_);
    ended_ += 1;
    end_.notify_one();
  }

  /// Waits a moment. Returns whether that many calls of work() have ended.
  bool wait_a_moment(std::size_t threads) {
    std::unique_lock lock(mutex_);
    return end_.wait_for(lock, kLookEvery, [&] { return ended_ == threads; });
  }
  JobStatus& status() { return status_; }

 private:
  const std::size_t count_;
  const Job& job_;
  JobStatus status_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;  // guards ended_
  std::size_t ended_ = 0;
  std::condition_variable end_;
};

}  // namespace

bool run_jobs(std::size_t count, std::uint64_t threads, const Watch& watch, const Job& job) {
  JobQueue queue(count, job);
  std::vector<std::thread> workers;
  const std::size_t wanted = std::clamp<std::size_t>(count, 1, std::max<std::uint64_t>(threads, 1));
  workers.reserve(wanted);
  try {
    while (workers.size() < wanted) workers.emplace_back([&queue] { queue.work(); });
  } catch (const std::system_error&) {
    if (workers.empty()) queue.work();
  }
  for (bool is_done = workers.empty(); !is_done;) {
    is_done = queue.wait_a_moment(workers.size());
    if (!watch(queue.status().done_bytes())) queue.status().stop();
  }
  for (std::thread& worker : workers) worker.join();
  return watch(queue.status().done_bytes()) && !queue.status().is_stopped();
}

}  // namespace stfs::tools
