// When the thread behind the commits tidies. Upper bounds are wide: the machine may be busy. Where a test
// must not be preempted to mean anything, it sees that it was and tries again.
#include "fs/janitor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kQuiet{20};
constexpr milliseconds kLongest{200};

/// Counts, with the times.
class Tidied {
 public:
  void note() {
    const std::scoped_lock lock(mutex_);
    times_.push_back(Clock::now());
  }
  [[nodiscard]] std::vector<Clock::time_point> times() const {
    const std::scoped_lock lock(mutex_);
    return times_;
  }
  [[nodiscard]] std::size_t count() const { return times().size(); }
  [[nodiscard]] bool comes_to(std::size_t count, milliseconds patience = milliseconds(5000)) const {
    const auto deadline = Clock::now() + patience;
    while (this->count() < count && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    return this->count() >= count;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Clock::time_point> times_;
};

/// Repeats until it was not disturbed; false where it always was.
bool undisturbed(const std::function<bool()>& attempt) {
  for (int attempts = 0; attempts < 8; ++attempts) {
    if (attempt()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("after a burst of commits the janitor tidies once, when it is quiet", "[fs][janitor]") {
  const bool has_run = undisturbed([] {
    Tidied tidied;
    Janitor janitor([&] { tidied.note(); });
    janitor.start();
    const auto began = Clock::now();
    for (int at = 0; at < 50; ++at) janitor.note_commit();
    const auto ended = Clock::now();
    if (ended - began >= kQuiet / 2) return false;
    REQUIRE(tidied.comes_to(1));
    CHECK(tidied.times()[0] - ended >= kQuiet / 2);
    std::this_thread::sleep_for(3 * kQuiet);
    CHECK(tidied.count() == 1);
    return true;
  });
  if (!has_run) WARN("the machine is too busy");
}

TEST_CASE("quiet is noticed long before the longest time is over", "[fs][janitor]") {
  Clock::duration shortest = std::chrono::hours(1);
  for (int attempts = 0; attempts < 8 && shortest >= kLongest / 2; ++attempts) {
    Tidied tidied;
    Janitor janitor([&] { tidied.note(); });
    janitor.start();
    janitor.note_commit();
    janitor.note_commit();
    const auto ended = Clock::now();
    REQUIRE(tidied.comes_to(1));
    shortest = std::min(shortest, tidied.times()[0] - ended);
  }
  CHECK(shortest < kLongest / 2);
}

TEST_CASE("without a commit the janitor does nothing", "[fs][janitor]") {
  Tidied tidied;
  Janitor janitor([&] { tidied.note(); });
  janitor.start();
  std::this_thread::sleep_for(3 * kQuiet);
  CHECK(tidied.count() == 0);
}

TEST_CASE("each burst is tidied after", "[fs][janitor]") {
  Tidied tidied;
  Janitor janitor([&] { tidied.note(); });
  janitor.start();
  for (std::size_t burst = 1; burst <= 3; ++burst) {
    janitor.note_commit();
    REQUIRE(tidied.comes_to(burst));
  }
}

TEST_CASE("an endless series of commits does not keep the janitor from tidying now and then",
          "[fs][janitor]") {
  const bool has_run = undisturbed([] {
    Tidied tidied;
    Janitor janitor([&] { tidied.note(); });
    janitor.start();
    const auto began = Clock::now();
    auto last = began;
    Clock::duration longest_gap{};
    while (tidied.count() < 3 && Clock::now() - began < std::chrono::seconds(5)) {
      janitor.note_commit();
      const auto now = Clock::now();
      longest_gap = std::max(longest_gap, now - std::exchange(last, now));
      std::this_thread::sleep_for(milliseconds(1));
    }
    REQUIRE(tidied.count() >= 3);
    if (longest_gap >= kQuiet / 2) return false;  // a pause that the janitor may have taken for quiet
    // Not before the longest time, for there was never quiet; and soon after it.
    const auto first = tidied.times()[0] - began;
    CHECK(first >= kLongest - milliseconds(5));
    CHECK(first < kLongest + milliseconds(500));
    CHECK(tidied.times()[1] - tidied.times()[0] >= kLongest - milliseconds(5));
    return true;
  });
  if (!has_run) WARN("the machine is too busy");
}

TEST_CASE("what is due when the janitor is stopped is left to the caller", "[fs][janitor]") {
  const bool has_run = undisturbed([] {
    Tidied tidied;
    Janitor janitor([&] { tidied.note(); });
    janitor.start();
    const auto began = Clock::now();
    janitor.note_commit();
    janitor.stop();
    if (Clock::now() - began >= kQuiet / 2) return false;
    janitor.note_commit();
    std::this_thread::sleep_for(3 * kQuiet);
    CHECK(tidied.count() == 0);
    janitor.stop();
    return true;
  });
  if (!has_run) WARN("the machine is too busy");
}

TEST_CASE("stop waits for the tidying that is under way, and none comes after", "[fs][janitor]") {
  std::atomic<bool> has_begun = false;
  std::atomic<int> ended = 0;
  Janitor janitor([&] {
    has_begun = true;
    std::this_thread::sleep_for(milliseconds(50));
    ++ended;
  });
  janitor.start();
  janitor.note_commit();
  while (!has_begun) std::this_thread::sleep_for(milliseconds(1));
  janitor.note_commit();
  janitor.stop();
  CHECK(ended == 1);
}

TEST_CASE("a commit while the janitor tidies is tidied after too, and waits for nothing", "[fs][janitor]") {
  Tidied tidied;
  std::atomic<bool> may_end = false;
  Janitor janitor([&] {
    tidied.note();
    while (!may_end) std::this_thread::sleep_for(milliseconds(1));
  });
  janitor.start();
  janitor.note_commit();
  REQUIRE(tidied.comes_to(1));
  janitor.note_commit();  // returns although tidy() has not
  may_end = true;
  CHECK(tidied.comes_to(2));
}

TEST_CASE("the janitor's work may itself tell of a commit", "[fs][janitor]") {
  Tidied tidied;
  Janitor* itself = nullptr;
  Janitor janitor([&] {
    tidied.note();
    if (tidied.count() == 1) itself->note_commit();
  });
  itself = &janitor;
  janitor.start();
  janitor.note_commit();
  CHECK(tidied.comes_to(2));
}

TEST_CASE("a janitor that was never started stops", "[fs][janitor]") {
  Janitor janitor([] {});
  janitor.note_commit();
  janitor.stop();
  SUCCEED("no thread to wait for");
}
