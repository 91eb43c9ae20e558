// core/storage/open_directory.h: a directory that keeps its files while its path names another one.
#include "core/storage/open_directory.h"

#include <cerrno>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("an open directory reaches its files whatever its path names", "[core][open_directory]") {
  namespace fs = std::filesystem;
  const TemporaryDirectory place;
  const fs::path path = place.path() / "directory";
  fs::create_directories(path);
  fs::create_directories(place.path() / "other");
  const auto opened = open_directory(system_storage(), path);
  REQUIRE(opened);
  fs::rename(path, place.path() / "moved");
  fs::create_directory_symlink("other", path);
  REQUIRE(system_storage().create(opened->file("made"), 0600));
  CHECK(fs::exists(place.path() / "moved" / "made"));
  CHECK_FALSE(fs::exists(place.path() / "other" / "made"));
  CHECK(system_storage().sync_directory(opened->path));
}

TEST_CASE("a link or a file is no directory of its own", "[core][open_directory]") {
  namespace fs = std::filesystem;
  const TemporaryDirectory place;
  fs::create_directories(place.path() / "directory");
  fs::create_directory_symlink("directory", place.path() / "link");
  fs::create_directory_symlink("missing", place.path() / "dangling");
  place.write("file", "");
  for (const char* name : {"link", "dangling", "file"})
    CHECK(open_directory(system_storage(), place.path() / name).error().errno_value == ENOTDIR);
  CHECK(open_directory(system_storage(), place.path() / "missing").error().errno_value == ENOENT);
}

TEST_CASE("a directory that was just made is told from one that another user has moved there",
          "[core][open_directory]") {
  const TemporaryDirectory place;
  const std::filesystem::path path = place.path() / "directory";
  std::filesystem::create_directories(path);
  const auto opened = open_directory(system_storage(), path);
  REQUIRE(opened);
  CHECK(is_newly_made(opened->fd.get()));
  CHECK(is_newly_made(opened->fd.get()));  // asking changes nothing
  place.write("directory/file", "");
  CHECK_FALSE(is_newly_made(opened->fd.get()));
}

TEST_CASE("a storage of a test reaches a directory by its path", "[core][open_directory]") {
  const TemporaryDirectory place;
  WatchedStorage storage;
  CHECK_FALSE(open_folder(storage, place.path())->fd);
  CHECK(open_folder(storage, place.path())->path == place.path());
  CHECK(open_folder(system_storage(), place.path())->fd);
}
