// The threads take the next index from one counter.
#include "core/base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return std::max(1U, std::thread::hardware_concurrency());
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

unsigned worker_count(std::size_t count, std::uint64_t threads) {
  return static_cast<unsigned>(
      std::min<std::uint64_t>(count, std::clamp<std::uint64_t>(threads, 1, kMostWorkers)));
}

Result<void> run_parallel(std::size_t count, unsigned threads,
                          const std::function<Result<void>(std::size_t index, unsigned worker)>& work) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  Mutex mutex;  // guards the variables below
  std::size_t failed_index = count;
  std::optional<Error> why;
  const auto serve = [&](unsigned worker) {
    while (!has_failed) {
      const std::size_t index = next++;
      if (index >= count) return;
      auto done = guard_memory([&] { return work(index, worker); });
      if (done) continue;
      has_failed = true;
      const MutexLock lock(mutex);
      if (index >= failed_index) continue;
      failed_index = index;
      why = std::move(done).error();
    }
  };
  std::vector<std::thread> others;
  const unsigned workers = worker_count(count, threads);
  others.reserve(workers);
  try {
    for (unsigned worker = 1; worker < workers; ++worker) {
      others.emplace_back(serve, worker);
    }
  } catch (const std::system_error&) {  // can't start more: the others do all the work
  }
  serve(0);
  for (std::thread& other : others) other.join();
  if (why) return tl::unexpected(*std::move(why));
  return {};
}

}  // namespace stfs
