// core/storage/enclosed_storage.h: no link below the directory is followed.
#include "core/storage/enclosed_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A directory with files, links and a pipe, beside a secret.
struct Enclosed {
  Enclosed() {
    namespace fs = std::filesystem;
    directory.write("secret", "secret");
    fs::create_directories(root / "sub");
    directory.write("root/file", "file");
    directory.write("root/sub/deep", "deep");
    fs::create_symlink("../secret", root / "out");
    fs::create_symlink(directory.path() / "secret", root / "absolute");
    fs::create_symlink("file", root / "inner");
    fs::create_directory_symlink("sub", root / "sub2");
    fs::create_directory_symlink("..", root / "up");
    fs::create_symlink("loop", root / "loop");
    REQUIRE(::mkfifo((root / "pipe").c_str(), 0666) == 0);
  }
  TemporaryDirectory directory;
  std::filesystem::path root = directory.path() / "root";
};

}  // namespace

TEST_CASE("a path beneath a directory is opened, one that leads through a link is not",
          "[core][enclosed_storage]") {
  const Enclosed place;
  const UniqueFd root(::open(place.root.c_str(), O_PATH | O_DIRECTORY));
  for (const bool uses_openat2 : {true, false}) {
    CAPTURE(uses_openat2);
    for (const char* name : {"file", "sub/deep", "sub", "."}) {
      CAPTURE(name);
      CHECK(open_beneath(root.get(), name, O_RDONLY, uses_openat2));
      CHECK(open_beneath(root.get(), name, O_PATH, uses_openat2));
    }
    for (const int flags : {O_RDONLY, O_PATH}) {
      for (const char* name : {"out", "absolute", "inner", "sub2/deep", "sub2", "up/root/file", "up/secret",
                               "loop", "../secret", "sub/../../secret", "/etc/passwd"}) {
        CAPTURE(name, flags);
        errno = 0;
        CHECK_FALSE(open_beneath(root.get(), name, flags, uses_openat2));
        CHECK(errno == ELOOP);
      }
      errno = 0;
      CHECK_FALSE(open_beneath(root.get(), "missing", flags, uses_openat2));
      CHECK(errno == ENOENT);
      CHECK_FALSE(open_beneath(root.get(), "file/deeper", flags, uses_openat2));
      CHECK(errno == ENOTDIR);
    }
  }
}

TEST_CASE("an enclosed storage takes its files by each name of its directory", "[core][enclosed_storage]") {
  const Enclosed place;
  const auto link = place.directory.path() / "link";
  std::filesystem::create_directory_symlink("root", link);
  for (const std::filesystem::path& name : {place.root, link, place.root / "", place.root / "sub" / ".."}) {
    CAPTURE(name.string());
    const auto storage = EnclosedStorage::open(name).value();
    CHECK(read_text(**storage->open(name / "file", Access::ReadOnly)).value() == "file");
    CHECK(storage->status(name / "file").value().identity.size_bytes == 4);
    CHECK(storage->list(name, "f").value() == std::vector<std::string>{"file"});
    CHECK(storage->open(std::filesystem::canonical(name) / "sub" / "deep", Access::ReadOnly));
  }
}

TEST_CASE("an enclosed storage names the link that it refuses, and changes nothing",
          "[core][enclosed_storage]") {
  const Enclosed place;
  const auto storage = EnclosedStorage::open(place.root).value();
  const auto linked = storage->open(place.root / "out", Access::ReadOnly);
  REQUIRE_FALSE(linked);
  CHECK(linked.error().errno_value == ELOOP);
  CHECK(linked.error().message.find((place.root / "out").string() + ": is a symbolic link") == 0);
  CHECK_FALSE(storage->status(place.root / "out"));
  CHECK(storage->open(place.directory.path() / "secret", Access::ReadOnly).error().errno_value == ELOOP);
  CHECK(storage->open(place.root / "pipe", Access::ReadOnly).error().errno_value == EINVAL);
  CHECK(storage->open(place.root / "sub", Access::ReadOnly).error().errno_value == EISDIR);
  CHECK(storage->open(place.root / "missing", Access::ReadOnly).error().errno_value == ENOENT);
  CHECK(storage->open(place.root / "file", Access::ReadWrite).error().errno_value == EROFS);
  CHECK(storage->remove(place.root / "file").error().errno_value == EROFS);
  CHECK(std::filesystem::exists(place.root / "file"));
  CHECK_FALSE(EnclosedStorage::open(place.root / "file"));
}
