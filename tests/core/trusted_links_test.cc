// core/storage/trusted_links.h: which users' links are followed.
#include "core/storage/trusted_links.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "core/storage/file.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr uid_t kMallory = 4242;
constexpr uid_t kAlice = 4343;

/// A directory that contains a private directory, whose file other users own.
struct LinkedGround {
  const TemporaryDirectory place;
  const std::filesystem::path root = place.path();

  LinkedGround() {
    std::filesystem::create_directories(root / "private");
    place.write("private/file", "secret");
  }

  /// Makes a link that this user owns.
  void link(const std::string& name, const std::filesystem::path& target, uid_t owner) const {
    std::filesystem::create_symlink(target, root / name);
    REQUIRE(::lchown((root / name).c_str(), owner, owner) == 0);
  }
  void give(const std::string& name, uid_t owner) const {
    REQUIRE(::chown((root / name).c_str(), owner, owner) == 0);
  }
  /// Returns 0 if the path leads to the private file.
  [[nodiscard]] int errno_of(const std::string& path) const {
    const auto found = follow_trusted_links(AT_FDCWD, root / path);
    if (!found) return found.error().errno_value;
    struct stat file {};
    REQUIRE(::stat((root / "private/file").c_str(), &file) == 0);
    CHECK(found->status.st_ino == file.st_ino);
    return 0;
  }
};

}  // namespace

TEST_CASE("links of root, of this user and of the file's owner are followed", "[core][trusted_links]") {
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user");
  const LinkedGround ground;
  ground.link("own", "private/file", 0);
  ground.link("others", "private/file", kMallory);
  ground.link("absolute", ground.root / "private/file", kMallory);
  CHECK(ground.errno_of("private/file") == 0);
  CHECK(ground.errno_of("own") == 0);
  CHECK(ground.errno_of("others") == EACCES);
  CHECK(ground.errno_of("absolute") == EACCES);
  ground.give("private/file", kMallory);
  CHECK(ground.errno_of("others") == 0);
  CHECK(ground.errno_of("absolute") == 0);
  ground.give("private/file", kAlice);
  CHECK(ground.errno_of("others") == EACCES);
}

TEST_CASE("each link on the way counts, also of directories", "[core][trusted_links]") {
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user");
  const LinkedGround ground;
  ground.link("planted", "private/file", kMallory);
  ground.link("chain", "planted", 0);
  ground.link("directory", "private", kMallory);
  ground.link("through", "directory/../directory/file", 0);
  CHECK(ground.errno_of("chain") == EACCES);
  CHECK(ground.errno_of("directory/file") == EACCES);
  CHECK(ground.errno_of("through") == EACCES);
  ground.give("private/file", kMallory);
  CHECK(ground.errno_of("chain") == 0);
  CHECK(ground.errno_of("directory/file") == 0);
  CHECK(ground.errno_of("through") == 0);
}

TEST_CASE("a link of /proc leads to its open file, and does not make another link trusted",
          "[core][trusted_links]") {
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user");
  const LinkedGround ground;
  const auto open = system_storage().open(ground.root / "private/file", Access::ReadOnly);
  REQUIRE(open);
  const std::filesystem::path link = "/proc/self/fd/" + std::to_string((*open)->descriptor());
  std::filesystem::rename(ground.root / "private/file", ground.root / "moved");
  ground.place.write("private/file", "other");
  ground.link("planted", link, kMallory);
  CHECK(ground.errno_of("planted") == EACCES);
  const auto found = follow_trusted_links(AT_FDCWD, link);
  struct stat moved {};
  REQUIRE((found && ::stat((ground.root / "moved").c_str(), &moved) == 0));
  CHECK(found->status.st_ino == moved.st_ino);
}

TEST_CASE("a link of /proc is not followed behind another user's link, whoever owns the file",
          "[core][trusted_links]") {
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user");
  const LinkedGround ground;
  ground.give("private/file", kMallory);
  const auto open = system_storage().open(ground.root / "private/file", Access::ReadOnly);
  REQUIRE(open);
  ground.link("planted", "/proc/self/fd/" + std::to_string((*open)->descriptor()), kMallory);
  CHECK(ground.errno_of("planted") == EACCES);
  ground.link("own", "/proc/self/fd/" + std::to_string((*open)->descriptor()), 0);
  CHECK(ground.errno_of("own") == 0);
}

TEST_CASE("what is missing, loops of links and files in place of directories have their own errors",
          "[core][trusted_links]") {
  const LinkedGround ground;
  const auto link = [&](const char* name, const char* target) {
    std::filesystem::create_symlink(target, ground.root / name);
  };
  link("dangling", "nothing");
  link("loop", "loop");
  link("file", "private/file");
  link("slash", "private/file/");
  CHECK(ground.errno_of("nothing") == ENOENT);
  CHECK(ground.errno_of("dangling") == ENOENT);
  CHECK(ground.errno_of("loop") == ELOOP);
  CHECK(ground.errno_of("file/x") == ENOTDIR);
  CHECK(ground.errno_of("slash") == ENOTDIR);
  CHECK(ground.errno_of("./private//../file") == 0);
  CHECK(follow_trusted_links(AT_FDCWD, "").error().errno_value == ENOENT);
}

TEST_CASE("the texts of all links of a chain together have the length of a path", "[core][trusted_links]") {
  const LinkedGround ground;
  const auto link = [&](const char* name, std::size_t length, const std::string& end) {
    std::string target;
    while (target.size() + end.size() < length)
      target += target.size() + end.size() + 2 <= length ? "./" : "/";
    std::filesystem::create_symlink(target + end, ground.root / name);
  };
  link("long", 3000, "private/file");
  CHECK(ground.errno_of("long") == 0);
  link("longer", 1096, "long");
  CHECK(ground.errno_of("longer") == 0);
  link("too-long", 1097, "long");
  CHECK(ground.errno_of("too-long") == ELOOP);
}

TEST_CASE("a file behind an untrusted link is opened for who only reads", "[core][trusted_links]") {
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user");
  const LinkedGround ground;
  ground.link("planted", "private/file", kMallory);
  Storage& storage = system_storage();
  CHECK(storage.open_behind(ground.root / "planted", Links::All));
  const auto refused = storage.open_behind(ground.root / "planted", Links::Trusted);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EACCES);
  CHECK(refused.error().message.find("planted belongs to user 4242") != std::string::npos);
  const auto directory = storage.open_behind(ground.root / "private", Links::Trusted);
  REQUIRE_FALSE(directory);
  CHECK(directory.error().errno_value == EISDIR);
}
