// Changes by others are noticed, each burst of changes at least once.
#include "fs/follow/watcher.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::CapturedStderr;
using stfs::test::TemporaryDirectory;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);  // for a machine that is busy with other things

Watcher::Files these(std::vector<std::filesystem::path> files) {
  return [files = std::move(files)] { return files; };
}

/// Counts the watcher's calls, after its first check of all files.
class Heard {
 public:
  Watcher::Next operator()() {
    const std::scoped_lock lock(mutex_);
    ++events_;
    changed_.notify_all();
    return std::exchange(next_, Watcher::Next::Wait);
  }
  /// Sets the answer to the next event.
  void answer(Watcher::Next next) {
    const std::scoped_lock lock(mutex_);
    next_ = next;
  }
  Watcher::OnEvent counting() {
    return [this](auto) { return (*this)(); };
  }
  /// Returns true once there were more than `before` events.
  bool more_than(int before) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return events_ > before; });
  }
  int events() {
    const std::scoped_lock lock(mutex_);
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int events_ = -1;
  Watcher::Next next_ = Watcher::Next::Wait;
};

void append(const std::string& file, std::string_view text) {
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

/// A file and its watcher, which the test starts.
struct WatchedFile {
  void start() {
    REQUIRE(watcher.start(these({file}), heard.counting()));
    REQUIRE(heard.more_than(-1));
  }

  TemporaryDirectory directory;
  std::string file = directory.write("a", "old");
  Heard heard;
  Watcher watcher;
};

}  // namespace

TEST_CASE_METHOD(WatchedFile, "a write into the archive is noticed, and the next one too", "[fs][watcher]") {
  start();
  append(file, "new");
  REQUIRE(heard.more_than(0));
  const int before = heard.events();
  append(file, "newer");
  CHECK(heard.more_than(before));
}

TEST_CASE_METHOD(WatchedFile, "cutting, replacing, moving and deleting the archive are noticed",
                 "[fs][watcher]") {
  start();
  SECTION("cut") {
    std::filesystem::resize_file(file, 1);
  }
  SECTION("replaced") {
    std::filesystem::rename(directory.write("b", "new"), file);
  }
  SECTION("moved") {
    std::filesystem::rename(file, directory / "elsewhere");
  }
  SECTION("deleted") {
    std::filesystem::remove(file);
  }
  CHECK(heard.more_than(0));
}

TEST_CASE_METHOD(WatchedFile, "reading the archive is no change", "[fs][watcher]") {
  start();
  CHECK(stfs::test::content_of(file) == "old");
  append(file, "new");  // only this write is reported, once
  REQUIRE(heard.more_than(0));
  CHECK(heard.events() == 1);
}

TEST_CASE("a burst of a thousand writes is looked at a few times, the last one included", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a", "");
  std::mutex mutex;
  std::condition_variable changed;
  std::uintmax_t seen_bytes = 0;
  int looks = 0;
  Watcher watcher;
  REQUIRE(watcher.start(these({file}), [&](auto) {
    const std::scoped_lock lock(mutex);
    seen_bytes = std::filesystem::file_size(file);
    ++looks;
    changed.notify_all();
    return Watcher::Next::Wait;
  }));
  {
    std::ofstream out(file, std::ios::binary);
    for (int at = 0; at < 1000; ++at) out << 'x' << std::flush;
  }
  std::unique_lock lock(mutex);
  CHECK(changed.wait_for(lock, kPatience, [&] { return seen_bytes == 1000; }));
  CHECK(looks < 500);
}

TEST_CASE("during a look that does not end, what can't wait is done again and again", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a", "");
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  int meanwhile = 0;
  Watcher watcher;
  const auto hangs = [&](auto) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kPatience, [&] { return may_end; });
    return Watcher::Next::Wait;
  };
  const auto counts = [&] {
    const std::scoped_lock lock(mutex);
    ++meanwhile;
    changed.notify_all();
  };
  REQUIRE(watcher.start(these({file}), hangs, counts));
  {
    std::unique_lock lock(mutex);
    CHECK(changed.wait_for(lock, kPatience, [&] { return meanwhile >= 2; }));
    may_end = true;
  }
  changed.notify_all();
  watcher.stop();
}

TEST_CASE_METHOD(WatchedFile, "after stop nothing is heard, and stopping twice is harmless",
                 "[fs][watcher]") {
  watcher.stop();
  start();
  watcher.stop();
  append(file, "new");
  watcher.stop();
  CHECK(heard.events() == 0);
}

TEST_CASE("what does not exist is noticed when it comes", "[fs][watcher]") {
  const TemporaryDirectory directory;
  Heard heard;
  Watcher watcher;
  REQUIRE(watcher.start(these({directory.path() / "absent"}), heard.counting()));
  REQUIRE(heard.more_than(-1));
  static_cast<void>(directory.write("absent", "here"));
  CHECK(heard.more_than(0));
}

TEST_CASE_METHOD(WatchedFile, "what has no directory cannot be watched, the others can", "[fs][watcher]") {
  const auto started = watcher.start(these({directory.path() / "no" / "absent", file}), heard.counting());
  REQUIRE_FALSE(started);
  CHECK(started.error().errno_value == ENOENT);
  CHECK(started.error().message.find("watch for changes") != std::string::npos);
  REQUIRE(heard.more_than(-1));
  append(file, "new");
  CHECK(heard.more_than(0));
}

TEST_CASE("other files are watched once they are asked for, and looked at first", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string one = directory.write("a", "old");
  const std::string two = directory.write("b", "old");
  std::vector<std::filesystem::path> files = {one};
  Heard heard;
  Watcher watcher;
  REQUIRE(watcher.start([&] { return files; }, heard.counting()));
  REQUIRE(heard.more_than(-1));
  files = {two};
  heard.answer(Watcher::Next::WatchAnew);
  append(one, "new");
  REQUIRE(heard.more_than(1));  // the event, and the look at the other file
  const int before = heard.events();
  append(two, "new");
  CHECK(heard.more_than(before));
}

TEST_CASE("who asks to look again is called without an event", "[fs][watcher]") {
  const TemporaryDirectory directory;
  Heard heard;
  heard.answer(Watcher::Next::LookAgain);
  Watcher watcher;
  REQUIRE(watcher.start(these({directory.write("a", "old")}), heard.counting()));
  CHECK(heard.more_than(0));
}

TEST_CASE_METHOD(WatchedFile, "an event of a file that is not watched takes no pending look away",
                 "[fs][watcher]") {
  heard.answer(GENERATE(Watcher::Next::LookAgain, Watcher::Next::LookSoon));
  start();
  static_cast<void>(directory.write("other", "new"));
  CHECK(heard.more_than(0));
}

TEST_CASE("a look at one file takes the pending look at another one not away", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string first = directory.write("first", "old");
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<std::size_t>> looks;
  Watcher watcher;
  REQUIRE(watcher.start(these({first, directory.write("second", "old")}),
                        [&](std::span<const std::size_t> files) {
                          const std::scoped_lock lock(mutex);
                          looks.emplace_back(files.begin(), files.end());
                          changed.notify_all();
                          return looks.size() == 1 ? Watcher::Next::LookAgain : Watcher::Next::Wait;
                        }));
  const auto come = [&](const std::vector<std::size_t>& due) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return !looks.empty() && looks.back() == due; });
  };
  REQUIRE(come({0, 1}));
  append(first, "new");
  REQUIRE(come({0}));
  CHECK(come({0, 1}));
}

TEST_CASE_METHOD(WatchedFile, "a look that throws is made again", "[fs][watcher]") {
  const CapturedStderr captured;
  int lists = 0;
  int looks = 0;
  REQUIRE(watcher.start(
      [&]() -> std::vector<std::filesystem::path> {
        if (++lists == 2) throw std::runtime_error("no list");
        return {file};
      },
      [&](auto) {
        if (++looks == 1) return Watcher::Next::WatchAnew;
        if (looks == 2) throw std::runtime_error("no look");
        return heard();
      }));
  REQUIRE(heard.more_than(-1));
  append(file, "new");
  CHECK(heard.more_than(0));
  watcher.stop();
  CHECK(captured.contains("no list"));
  CHECK(captured.contains("no look"));
}

TEST_CASE_METHOD(WatchedFile, "files that change without a pause do not keep it from its end",
                 "[fs][watcher]") {
  REQUIRE(watcher.start(these({file}), [this](auto) {
    static_cast<void>(heard());
    return Watcher::Next::WatchAnew;
  }));
  REQUIRE(heard.more_than(5));
  watcher.stop();  // does not return if the test fails
}

TEST_CASE("a queue that ran over tells of every file", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string first = directory.write("first", "old");
  const std::string lost = directory.write("lost", "old");
  unsigned room = 0;
  std::ifstream("/proc/sys/fs/inotify/max_queued_events") >> room;
  REQUIRE(room > 0);

  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0;
  bool may_go_on = false;
  std::set<std::size_t> told;  // after the call that had to wait
  Watcher watcher;
  REQUIRE(watcher.start(these({first, lost}), [&](std::span<const std::size_t> files) {
    std::unique_lock lock(mutex);
    if (++calls > 2) told.insert(files.begin(), files.end());
    changed.notify_all();
    changed.wait(lock, [&] { return calls != 2 || may_go_on; });
    return Watcher::Next::Wait;
  }));
  const auto comes = [&](const auto& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, condition);
  };
  REQUIRE(comes([&] { return calls == 1; }));
  append(first, "new");
  const bool waits = comes([&] { return calls == 2; });
  // Each round causes two events. The watcher does not read them in this time.
  for (unsigned number = 0; waits && number <= room / 2; ++number) {
    std::filesystem::remove(directory.write("other" + std::to_string(number), ""));
  }
  append(lost, "new");
  {
    const std::scoped_lock lock(mutex);
    may_go_on = true;
  }
  changed.notify_all();
  CHECK(waits);
  CHECK(comes([&] { return told.contains(1); }));
}

TEST_CASE("archives that come into a watched directory are noticed, and other files are not",
          "[fs][watcher]") {
  const TemporaryDirectory directory;
  Heard heard;
  Watcher watcher;
  REQUIRE(watcher.start(these({directory.path() / ""}), heard.counting()));
  REQUIRE(heard.more_than(-1));
  static_cast<void>(directory.write("x.json", "x"));
  static_cast<void>(directory.write("new.safetensors", "x"));
  REQUIRE(heard.more_than(0));
  int before = heard.events();
  std::filesystem::rename(directory / "x.json", directory / "moved.safetensors");
  REQUIRE(heard.more_than(before));
}
