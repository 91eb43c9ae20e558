// core/storage/foreign_mount.h: which mounts on a name are entered.
#include "core/storage/foreign_mount.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>

#include "core/storage/file.h"
#include "core/storage/file_attributes.h"
#include "core/storage/trusted_links.h"
#include "tests/support/catch.h"
#include "tests/support/silent_mount.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

int errno_of_entry(const std::filesystem::path& path, int flags) {
  const auto opened = open_entry(path, flags);
  return opened ? 0 : opened.error().errno_value;
}

}  // namespace

TEST_CASE("an entry is opened, and no link of its name", "[core][foreign_mount]") {
  const TemporaryDirectory place;
  place.write("file", "bytes");
  std::filesystem::create_symlink("file", place / "link");
  CHECK(errno_of_entry(place / "file", O_RDONLY) == 0);
  CHECK(errno_of_entry(place / "link", O_RDONLY) == ELOOP);
  CHECK(errno_of_entry(place / "link", O_PATH) == 0);
  CHECK(errno_of_entry(place / "missing", O_PATH) == ENOENT);
  CHECK(errno_of_entry(place / "file", O_PATH | O_DIRECTORY) == ENOTDIR);
}

TEST_CASE("a daemon enters no mount of another user anywhere on a path", "[core][foreign_mount]") {
  constexpr uid_t kMallory = 4242;
  const TemporaryDirectory place;
  std::filesystem::create_directory(place / "d");
  const SilentMount others(place / "d", kMallory);
  if (!others.is_made()) return note_skip("needs root, to mount as another user");
  for (const char* path : {"d", "d/", "d/deeper", "d/deeper/file"})
    CHECK(follow_trusted_links(AT_FDCWD, place / path, OtherMounts::NotForeign).error().errno_value == EXDEV);
  const UniqueFd root(::open((place / "d").c_str(), O_PATH | O_CLOEXEC));
  CHECK(is_in_foreign_mount(root.get()));
  const UniqueFd above(::open(place.path().c_str(), O_PATH | O_CLOEXEC));
  CHECK_FALSE(is_in_foreign_mount(above.get()));
}

TEST_CASE("a user's daemon enters the user's own mounts", "[core][foreign_mount]") {
  constexpr uid_t kAlice = 4242;
  const TemporaryDirectory place;
  std::filesystem::create_directory(place / "d");
  const SilentMount own(place / "d", kAlice);
  if (!own.is_made()) return note_skip("needs root, to mount as another user");
  const UniqueFd root(::open((place / "d").c_str(), O_PATH | O_CLOEXEC));
  CHECK(is_in_foreign_mount(root.get()));
  bool is_foreign = true;
  std::thread alices([&] {
    // The system call itself changes only the user of this thread.
    if (::syscall(SYS_setresuid, -1, kAlice, -1) == 0) is_foreign = is_in_foreign_mount(root.get());
  });
  alices.join();
  CHECK_FALSE(is_foreign);
}

TEST_CASE("only another user's mount of FUSE is not entered", "[core][foreign_mount]") {
  constexpr uid_t kMallory = 4242;
  const TemporaryDirectory place;
  place.write("file", "bytes");
  std::filesystem::create_symlink("file", place / "link");
  {
    const SilentMount own(place / "file", ::geteuid());
    if (!own.is_made()) return note_skip("needs root, to mount as another user");
    CHECK(errno_of_entry(place / "file", O_PATH) == 0);
  }
  const SilentMount others(place / "file", kMallory);
  REQUIRE(others.is_made());
  for (const int flags : {O_PATH, O_RDONLY, O_RDWR}) CHECK(errno_of_entry(place / "file", flags) == EXDEV);
  Storage& storage = system_storage();
  for (const char* name : {"file", "link"}) {
    const std::filesystem::path path = place / name;
    CHECK(storage.status(path).error().errno_value == EXDEV);
    CHECK(storage.open(path, Access::ReadOnly).error().errno_value == EXDEV);
    CHECK(storage.open_behind(path, Links::Trusted).error().errno_value == EXDEV);
    CHECK(storage.check_writable(path).error().errno_value == EXDEV);
    CHECK(real_path(path) == path);
  }
  CHECK(storage.open_no_link(place / "file", Access::ReadOnly).error().errno_value == EXDEV);
  CHECK(may_be_planted(storage, place / "file"));
  const std::string message = storage.open(place / "file", Access::ReadOnly).error().message;
  CHECK(message.find("(fuse.silent) by user 4242") != std::string::npos);
}
