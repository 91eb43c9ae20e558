// Work is shared by as many threads as it needs, however many the caller asks for.
#include "core/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr unsigned kAsManyAsAsked = std::numeric_limits<unsigned>::max();

/// Returns the number of threads among which run_parallel() shares the work, or fewer. The caller's thread is
/// included.
unsigned workers_for(std::size_t count, unsigned threads) {
  std::atomic<bool> are_all_started = false;
  std::atomic<unsigned> largest = 0;
  const auto done = run_parallel(count, threads, [&](std::size_t, unsigned worker) -> Result<void> {
    unsigned before = largest;
    while (before < worker && !largest.compare_exchange_weak(before, worker)) {
    }
    // Worker 0 is the caller. It begins to work when the other threads are started. Until then they wait
    // here.
    if (worker == 0) are_all_started = true;
    are_all_started.notify_all();
    are_all_started.wait(false);
    return {};
  });
  REQUIRE(done);
  return largest + 1;
}

}  // namespace

TEST_CASE("the number of workers is that of the threads, the pieces of work, or the limit",
          "[core][parallel]") {
  CHECK(worker_count(10, 4) == 4);
  CHECK(worker_count(3, 4) == 3);
  CHECK(worker_count(0, 4) == 0);
  CHECK(worker_count(10, 0) == 1);
  CHECK(worker_count(100'000, 100'000) == kMostWorkers);
  CHECK(worker_count(std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::uint64_t>::max()) ==
        kMostWorkers);
}

TEST_CASE("a request for very many threads starts no more than there is work for", "[core][parallel]") {
  CHECK(workers_for(3, 100'000) <= 3);
  CHECK(workers_for(3, kAsManyAsAsked) <= 3);
}

TEST_CASE("a request for very many threads starts no more than the limit", "[core][parallel]") {
  // There is one piece of work more than threads, so that worker 0 also gets one.
  const unsigned threads = kMostWorkers + 200;
  CHECK(workers_for(threads + 1, threads) <= kMostWorkers);
}

TEST_CASE("each piece of work is done once, and the first failure is told", "[core][parallel]") {
  std::vector<std::atomic<int>> calls(500);
  REQUIRE(run_parallel(calls.size(), 100'000, [&](std::size_t index, unsigned) -> Result<void> {
    ++calls[index];
    return {};
  }));
  CHECK(std::ranges::all_of(calls, [](const auto& count) { return count == 1; }));
  const auto failed = run_parallel(10, 0, [](std::size_t index, unsigned) -> Result<void> {
    if (index < 3) return {};
    return fail(ErrorCode::System, EIO, std::to_string(index));
  });
  REQUIRE_FALSE(failed);
  CHECK(failed.error().message == "3");
}
