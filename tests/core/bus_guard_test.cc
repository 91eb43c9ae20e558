// A page that does not exist any more ends the copy, not the process.
#include "core/storage/bus_guard.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "core/storage/file.h"
#include "tests/support/catch.h"
#include "tests/support/emulated.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::TemporaryDirectory;

namespace {

constexpr std::size_t kSizeBytes = 100'000;

struct Mapped {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", std::string(kSizeBytes, 'x'));
  const std::unique_ptr<File> file = std::move(*system_storage().open(path, Access::ReadOnly));
  void* const map = ::mmap(nullptr, kSizeBytes, PROT_READ, MAP_SHARED, file->descriptor(), 0);
  Mapped() { install_bus_guard(); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { ::munmap(map, kSizeBytes); }

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(map), kSizeBytes};
  }
};

bool copy_all(std::span<const std::byte> from, std::vector<std::byte>& to) {
  return copy_guarded(from, [&] { std::memcpy(to.data(), from.data(), from.size()); });
}

/// Runs the action in a child process. Returns the child's status, as waitpid() reports it.
template <class Action>
int status_of_child(const Action& action) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("without the handler nothing is copied", "[core][bus_guard]") {
  if (!test::can_start_itself()) {
    test::note_skip("an emulator without binfmt_misc can't start this program");
    return;
  }
  // The handler stays until the process ends, so the test runs in a new process.
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (std::getenv("STFS_TEST_WITHOUT_GUARD") == nullptr) {
    CHECK(std::system(("STFS_TEST_WITHOUT_GUARD=1 '" + program +
                       "' 'without the handler nothing is copied' > /dev/null 2>&1")
                          .c_str()) == 0);
    return;
  }
  const std::string bytes = "bytes";
  bool is_called = false;
  CHECK_FALSE(copy_guarded(std::as_bytes(std::span(bytes)), [&] { is_called = true; }));
  CHECK_FALSE(is_called);
}

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

TEST_CASE("a fault outside of the region ends the process, as without the handler", "[core][bus_guard]") {
  const Mapped cut;
  std::filesystem::resize_file(cut.path, 8192);
  const int status = status_of_child([&] {
    std::vector<std::byte> to(kSizeBytes);
    // The region ends before the page that is touched.
    static_cast<void>(copy_guarded(cut.bytes().first(8192),
                                   [&] { std::memcpy(to.data(), cut.bytes().data(), kSizeBytes); }));
    ::_exit(std::to_integer<int>(to.back()));
  });
  // A sanitizer installs its own handler before ours.
  CHECK((WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0));
}

TEST_CASE("a SIGBUS that another process sends ends the process, in the middle of a copy too",
          "[core][bus_guard]") {
  const Mapped whole;
  const int status = status_of_child(
      [&] { static_cast<void>(copy_guarded(whole.bytes(), [] { ::kill(::getpid(), SIGBUS); })); });
  CHECK((WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0));
}
