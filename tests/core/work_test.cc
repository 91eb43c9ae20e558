// The function that watches long work runs on its own thread, and can stop the work.
#include "core/base/work.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

using Seen = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

}  // namespace

TEST_CASE("a watch sees the begin and the end of each pass, on its own thread", "[core][work]") {
  const unsigned threads = GENERATE(1U, 4U);
  CAPTURE(threads);
  Seen seen;  // without a lock
  Work work([&, thread = std::this_thread::get_id()](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    CHECK(std::this_thread::get_id() == thread);
    seen.emplace_back(done_bytes, total_bytes);
    return true;
  });
  for (const std::uint64_t jobs : {8U, 3U}) {
    seen.clear();
    work.begin(10 * jobs);
    REQUIRE(run_watched(jobs, threads, work, [&](std::size_t, unsigned) -> Result<void> {
      work.advance(10);
      return {};
    }));
    REQUIRE(seen.size() >= 2);
    CHECK(seen.front() == std::pair<std::uint64_t, std::uint64_t>(0, 10 * jobs));
    CHECK(seen.back() == std::pair<std::uint64_t, std::uint64_t>(10 * jobs, 10 * jobs));
  }
  CHECK_FALSE(work.is_stopped());
}

TEST_CASE("a watch stops work that runs long", "[core][work]") {
  const unsigned threads = GENERATE(1U, 4U);
  CAPTURE(threads);
  Work work([](std::uint64_t done_bytes, std::uint64_t) { return done_bytes == 0; });
  work.begin(UINT64_MAX);
  CHECK(run_watched(4, threads, work, [&](std::size_t, unsigned) -> Result<void> {
    while (work.advance(1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {};
  }));
  CHECK(work.is_stopped());
}

TEST_CASE("stopped work stays stopped", "[core][work]") {
  Work work;
  work.stop();
  work.begin(5);
  CHECK_FALSE(work.advance(5));
  std::atomic<int> jobs = 0;
  CHECK(run_watched(3, 2, work, [&](std::size_t, unsigned) -> Result<void> {
    ++jobs;
    return {};
  }));
  CHECK(jobs == 0);
}

TEST_CASE("a failed job ends the others of its pass, and no later pass", "[core][work]") {
  Work work;
  work.begin(2);
  const auto done = run_watched(2, 2, work, [&](std::size_t index, unsigned) -> Result<void> {
    if (index == 1) return fail(ErrorCode::System, EIO, "broken");
    while (work.goes_on()) std::this_thread::yield();
    return fail(ErrorCode::System, EINTR, "told to end");
  });
  REQUIRE_FALSE(done);
  CHECK(done.error().errno_value == EIO);
  CHECK_FALSE(work.is_stopped());
  work.begin(1);
  CHECK(work.advance(1));
}
