// Tests when the janitor's thread tidies. Most tests have their own clock, which only advances when the test
// advances it. A busy machine then makes no difference.
#include "fs/follow/janitor.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <thread>

#include "core/base/mutex.h"
#include "tests/support/catch.h"

using namespace stfs;

namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLongEnough{20};  // for a machine that is busy with other things

/// Counts how often the janitor has tidied.
class Tidied {
 public:
  void note() { ++count_; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] bool comes_to(int count) const {
    const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
    while (count_ < count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return count_ >= count;
  }

 private:
  std::atomic<int> count_ = 0;
};

/// A clock that advances only when a test ends a wait. Outlives the janitor.
class SteppedClock : public Janitor::Clock {
 public:
  std::chrono::steady_clock::time_point now() override { return now_; }
  void wait_for(Mutex& mutex, Condition& wakes, milliseconds time,
                const std::function<bool()>& is_over) override {
    if (is_over()) return;
    wait_ = {&mutex, &wakes};
    ++begun_;
    wakes.wait(mutex, [&] { return is_over() || may_end_ >= begun_; });
    now_ += time;
  }
  /// Returns true if the janitor is in its nth wait.
  [[nodiscard]] bool is_in_wait(int nth) const {
    const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
    while (begun_ < nth && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return begun_ == nth;
  }
  /// Ends the present wait.
  void end_wait() {
    const MutexLock lock(*wait_.mutex);
    may_end_ = begun_.load();
    wait_.wakes->notify_all();
  }
  [[nodiscard]] int waits() const { return begun_; }

 private:
  struct Wait {
    Mutex* mutex = nullptr;
    Condition* wakes = nullptr;
  } wait_;  // written before begun_ grows, read after
  std::atomic<int> begun_ = 0;
  int may_end_ = 0;  // needs the janitor's mutex, as now_ does
  std::chrono::steady_clock::time_point now_;
};

}  // namespace

TEST_CASE("after each burst of commits the janitor tidies once, when it is quiet", "[fs][janitor]") {
  Tidied tidied;
  SteppedClock clock;
  Janitor janitor({.tidy = [&] { tidied.note(); }}, clock);
  janitor.start();
  for (int burst = 1; burst <= 3; ++burst) {
    const int wait = 2 * burst - 1;
    janitor.note_commit();
    REQUIRE(clock.is_in_wait(wait));
    for (int at = 0; at < 50; ++at) janitor.note_commit();
    clock.end_wait();
    REQUIRE(clock.is_in_wait(wait + 1));  // because there were commits in that time
    CHECK(tidied.count() == burst - 1);
    clock.end_wait();
    REQUIRE(tidied.comes_to(burst));
  }
  janitor.stop();
  CHECK(tidied.count() == 3);
  CHECK(clock.waits() == 6);
}

TEST_CASE("an endless series of commits does not keep the janitor from tidying now and then",
          "[fs][janitor]") {
  constexpr int kMost = Janitor::kLongest / Janitor::kQuiet;
  Tidied tidied;
  SteppedClock clock;
  Janitor janitor({.tidy = [&] { tidied.note(); }}, clock);
  janitor.start();
  janitor.note_commit();
  for (int wait = 1; wait <= 3 * kMost; ++wait) {
    REQUIRE(clock.is_in_wait(wait));
    CHECK(tidied.count() == (wait - 1) / kMost);
    janitor.note_commit();
    clock.end_wait();
    if (wait % kMost == 0) {
      REQUIRE(tidied.comes_to(wait / kMost));
      janitor.note_commit();  // the next series
    }
  }
}

TEST_CASE("after a while without a commit the janitor does the rest, once", "[fs][janitor]") {
  Tidied tidied;
  Tidied rested;
  SteppedClock clock;
  Janitor janitor({.tidy = [&] { tidied.note(); }, .rest = [&] { rested.note(); }}, clock);
  janitor.start();
  janitor.note_commit();
  REQUIRE(clock.is_in_wait(1));
  clock.end_wait();
  REQUIRE(clock.is_in_wait(2));  // it waits for a time without a commit
  CHECK(tidied.count() == 1);
  janitor.note_commit();  // too soon
  REQUIRE(clock.is_in_wait(3));
  clock.end_wait();
  REQUIRE(clock.is_in_wait(4));
  CHECK(rested.count() == 0);
  clock.end_wait();
  REQUIRE(rested.comes_to(1));
  janitor.note_commit();
  REQUIRE(clock.is_in_wait(5));
  CHECK(rested.count() == 1);
  janitor.stop();
  CHECK(tidied.count() == 2);
}

TEST_CASE("what is due when the janitor is stopped is left to the caller", "[fs][janitor]") {
  Tidied tidied;
  SteppedClock clock;
  Janitor janitor({.tidy = [&] { tidied.note(); }}, clock);
  janitor.start();
  janitor.note_commit();
  REQUIRE(clock.is_in_wait(1));
  janitor.stop();  // does not wait for the quiet
  janitor.note_commit();
  CHECK(tidied.count() == 0);
  CHECK(clock.waits() == 1);
  janitor.stop();
}

TEST_CASE("in real time the quiet comes, and without a commit the janitor does nothing", "[fs][janitor]") {
  Tidied idle;
  Tidied tidied;
  Janitor other({.tidy = [&] { idle.note(); }});
  Janitor janitor({.tidy = [&] { tidied.note(); }});
  other.start();
  janitor.start();
  for (int burst = 1; burst <= 3; ++burst) {
    janitor.note_commit();
    REQUIRE(tidied.comes_to(burst));
  }
  CHECK(idle.count() == 0);
}

TEST_CASE("stop waits for the tidying that is under way, and none comes after", "[fs][janitor]") {
  std::atomic<bool> has_begun = false;
  std::atomic<int> ended = 0;
  Janitor janitor({.tidy = [&] {
    has_begun = true;
    std::this_thread::sleep_for(milliseconds(500));  // longer than until stop() below, also on a busy machine
    ++ended;
  }});
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
  Janitor janitor({.tidy = [&] {
    tidied.note();
    while (!may_end) std::this_thread::sleep_for(milliseconds(1));
  }});
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
  Janitor janitor({.tidy = [&] {
    tidied.note();
    if (tidied.count() == 1) itself->note_commit();
  }});
  itself = &janitor;
  janitor.start();
  janitor.note_commit();
  CHECK(tidied.comes_to(2));
}

TEST_CASE("a janitor that was never started stops, and leaves to the caller what is due", "[fs][janitor]") {
  Tidied tidied;
  Janitor janitor({.tidy = [&] { tidied.note(); }});
  janitor.note_commit();
  janitor.stop();
  CHECK(tidied.count() == 0);
}

TEST_CASE("a janitor whose work throws tries again", "[fs][janitor]") {
  Tidied tidied;
  SteppedClock clock;
  Janitor janitor({.tidy =
                       [&] {
                         tidied.note();
                         if (tidied.count() == 1) throw std::bad_alloc();
                       }},
                  clock);
  janitor.start();
  janitor.note_commit();
  REQUIRE(clock.is_in_wait(1));
  clock.end_wait();
  REQUIRE(clock.is_in_wait(2));
  CHECK(tidied.count() == 1);
  clock.end_wait();
  REQUIRE(tidied.comes_to(2));
}
