// A page that is gone ends the copy, not the process.
#include "core/bus_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "core/mapped_region.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::TemporaryDirectory;

namespace {

constexpr std::size_t kSizeBytes = 100'000;

struct Mapped {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", std::string(kSizeBytes, 'x'));
  const std::unique_ptr<File> file = std::move(*system_storage().open(path, Access::ReadOnly));
  const MappedRegion region = std::move(*MappedRegion::map(*file, kSizeBytes));

  [[nodiscard]] std::span<const std::byte> bytes() const { return region.bytes({0, kSizeBytes}); }
};

bool copy_all(std::span<const std::byte> from, std::vector<std::byte>& to) {
  return copy_guarded(from, [&] { std::memcpy(to.data(), from.data(), from.size()); });
}

}  // namespace

TEST_CASE("what is there is copied", "[core][bus_guard]") {
  const Mapped mapped;
  std::vector<std::byte> to(kSizeBytes);
  REQUIRE(copy_all(mapped.bytes(), to));
  CHECK(std::ranges::equal(to, mapped.bytes()));
}

TEST_CASE("a page that is gone ends the copy, each time anew", "[core][bus_guard]") {
  const Mapped mapped;
  std::vector<std::byte> to(kSizeBytes);
  std::filesystem::resize_file(mapped.path, 8192);
  for (int times = 0; times < 3; ++times) {
    CHECK_FALSE(copy_all(mapped.bytes(), to));
    CHECK(copy_all(mapped.bytes().first(8192), to));
  }
}

TEST_CASE("each thread has its own way back", "[core][bus_guard]") {
  const Mapped whole;
  const Mapped cut;
  std::filesystem::resize_file(cut.path, 8192);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, is_whole = thread % 2 == 0] {
      std::vector<std::byte> to(kSizeBytes);
      for (int times = 0; times < 200; ++times) {
        if (copy_all(is_whole ? whole.bytes() : cut.bytes(), to) != is_whole) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a signal of somebody else's goes its way", "[core][bus_guard]") {
  const Mapped cut;
  std::filesystem::resize_file(cut.path, 8192);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::vector<std::byte> to(kSizeBytes);
    ::signal(SIGBUS, [](int) { ::_exit(42); });
    // The region ends before the page that is touched.
    static_cast<void>(copy_guarded(cut.bytes().first(8192),
                                   [&] { std::memcpy(to.data(), cut.bytes().data(), kSizeBytes); }));
    ::_exit(std::to_integer<int>(to.back()));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
}
