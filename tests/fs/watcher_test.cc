// Changes by others are noticed, each burst of them at least once.
#include "fs/watcher.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::TemporaryDirectory;

namespace {

constexpr auto kLongEnough = std::chrono::seconds(20);  // for a machine that is busy with other things

/// Counts what the watcher says.
class Heard {
 public:
  void operator()() {
    const std::scoped_lock lock(mutex_);
    ++events_;
    changed_.notify_all();
  }
  /// True once more than `before` events were heard.
  bool more_than(int before) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongEnough, [&] { return events_ > before; });
  }
  int events() {
    const std::scoped_lock lock(mutex_);
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int events_ = 0;
};

void append(const std::string& file, std::string_view text) {
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

}  // namespace

TEST_CASE("a write into the archive is noticed, and the next one too", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a", "old");
  Heard heard;
  Watcher watcher;
  REQUIRE(watcher.start(std::array{std::filesystem::path(file)}, [&](auto) { heard(); }));
  append(file, "new");
  REQUIRE(heard.more_than(0));
  const int before = heard.events();
  append(file, "newer");
  CHECK(heard.more_than(before));
}

TEST_CASE("cutting, replacing, moving and deleting the archive are noticed", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a", "old");
  Heard heard;
  Watcher watcher;
  REQUIRE(watcher.start(std::array{std::filesystem::path(file)}, [&](auto) { heard(); }));
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

TEST_CASE("reading the archive is no change", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a", "old");
  Heard heard;
  Watcher watcher;
  REQUIRE(watcher.start(std::array{std::filesystem::path(file)}, [&](auto) { heard(); }));
  CHECK(stfs::test::content_of(file) == "old");
  append(file, "new");  // what is heard is this, once
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
  REQUIRE(watcher.start(std::array{std::filesystem::path(file)}, [&](auto) {
    const std::scoped_lock lock(mutex);
    seen_bytes = std::filesystem::file_size(file);
    ++looks;
    changed.notify_all();
  }));
  {
    std::ofstream out(file, std::ios::binary);
    for (int at = 0; at < 1000; ++at) out << 'x' << std::flush;
  }
  std::unique_lock lock(mutex);
  CHECK(changed.wait_for(lock, kLongEnough, [&] { return seen_bytes == 1000; }));
  CHECK(looks < 500);
}

TEST_CASE("after stop nothing is heard, and stopping twice is harmless", "[fs][watcher]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a", "old");
  Heard heard;
  Watcher watcher;
  watcher.stop();
  REQUIRE(watcher.start(std::array{std::filesystem::path(file)}, [&](auto) { heard(); }));
  watcher.stop();
  append(file, "new");
  watcher.stop();
  CHECK(heard.events() == 0);
}

TEST_CASE("what does not exist cannot be watched", "[fs][watcher]") {
  const TemporaryDirectory directory;
  Watcher watcher;
  const auto started = watcher.start(std::array{directory.path() / "absent"}, [](auto) {});
  REQUIRE_FALSE(started);
  CHECK(started.error().errno_value == ENOENT);
  CHECK(started.error().message.find("watch for changes") != std::string::npos);
}
