// core/storage/new_file.h. archive_writer_test.cc tests the functions for archives.
#include "core/storage/new_file.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "core/storage/attribute_names.h"
#include "core/storage/permissions.h"
#include "tests/core/access_list.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// The temporary file beside a path.
std::filesystem::path temporary_in(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (is_temporary_file_name(entry.path().filename().string())) return entry.path();
  throw std::runtime_error("no temporary file");
}

/// The status of the file that replaces the one at the path.
struct stat replaced(const std::string& path, const NewFileMode& mode = {.mode = 0640}) {
  auto file = NewFile::create(path, true, mode);
  if (!file || !file->append(bytes_of("new")) || !file->finish()) throw std::runtime_error("not replaced");
  struct stat made {};
  REQUIRE(::stat(path.c_str(), &made) == 0);
  return made;
}

/// Gives the file or directory an access control list of this name that lets another user read and write.
/// Returns false if the file system has no such lists.
bool let_another_user(const std::filesystem::path& path, const char* list_name) {
  const std::string list = access_list(
      {{kAclUserObject, 7}, {kAclUser, 7, 4242}, {kAclGroupObject, 6}, {kAclMask, 7}, {kAclOther, 4}});
  if (::setxattr(path.c_str(), list_name, list.data(), list.size(), 0) == 0) return true;
  test::note_skip("the file system of temporary files has no access control lists");
  return false;
}

/// The mode of a file, and whether it has an access control list.
std::pair<mode_t, bool> access_of(const std::filesystem::path& path) {
  const auto file = system_storage().open(path, Access::ReadOnly).value();
  return {file->status().value().mode & 07777U, has_access_list(file->descriptor())};
}

}  // namespace

TEST_CASE("a new file has its name when it is finished, and all its bytes", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  const std::string small = "small";
  const std::string large(1'000'000, 'x');
  {
    auto file = NewFile::create(path, true);
    REQUIRE(file);
    REQUIRE(file->reserve(3'000'000));
    for (const std::string& piece : {small, large, small, small, large})
      REQUIRE(file->append(bytes_of(piece)));
    CHECK(test::content_of(path) == "old");
    REQUIRE(file->finish());
    CHECK_FALSE(file->is_open());
    CHECK_FALSE(file->append(bytes_of(small)));
  }
  CHECK((test::content_of(path) == small + large + small + small + large));
  CHECK(count_files(directory.path()) == 1);
}

TEST_CASE("space that was reserved and not needed is no part of the file", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  auto file = NewFile::create(directory / "file", false);
  REQUIRE(file);
  REQUIRE(file->reserve(1 << 20));
  REQUIRE(file->append(bytes_of("abc")));
  REQUIRE(file->finish());
  CHECK(test::content_of(directory / "file") == "abc");
}

TEST_CASE("what was appended to a new file can be taken back", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  auto file = NewFile::create(directory / "file", false);
  REQUIRE(file);
  const std::string large(600'000, 'x');  // more than the buffer holds
  REQUIRE(file->append(bytes_of("abc")));
  REQUIRE(file->append(bytes_of(large)));
  REQUIRE(file->cut(2));
  REQUIRE(file->append(bytes_of(large)));
  REQUIRE(file->cut(2 + 5));
  REQUIRE(file->append(bytes_of("end")));
  REQUIRE(file->cut(2 + 5 + 3));
  REQUIRE(file->finish());
  CHECK(test::content_of(directory / "file") == "abxxxxxend");
}

TEST_CASE("nobody can guess the name of a temporary file", "[core][new_file]") {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::set<std::string> names;
  std::set<char> first;
  for (int at = 0; at < 1000; ++at) {
    const std::string name = new_temporary_file_name();
    CHECK(is_temporary_file_name(name));
    REQUIRE(name.size() == std::string_view(".stfs-0123456789abcdef.tmp").size());
    CHECK(name.find_first_not_of(kHex, 6) == 6 + 16);
    names.insert(name);
    first.insert(name[6]);
  }
  CHECK(names.size() == 1000);
  CHECK(first.size() == kHex.size());
}

TEST_CASE("a new file that is given up leaves nothing", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  {
    auto file = NewFile::create(path, true);
    REQUIRE(file);
    REQUIRE(file->append(bytes_of("new")));
    CHECK(count_files(directory.path()) == 2);
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      CHECK(is_temporary_file_name(entry.path().filename().string()) == (entry.path() != path));
    NewFile moved = std::move(*file);
  }
  CHECK(count_files(directory.path()) == 1);
  CHECK(test::content_of(path) == "old");
  CHECK_FALSE(NewFile::create(path, false));
  CHECK_FALSE(NewFile::create(directory / "none/file", true));
}

TEST_CASE("a new file that is settled takes no descriptor, and has its name when it is finished",
          "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  {
    auto given_up = NewFile::create(path, true);
    REQUIRE(given_up);
    REQUIRE(given_up->append(bytes_of("given up")));
    REQUIRE(given_up->settle());
    CHECK_FALSE(given_up->is_open());
    CHECK_FALSE(given_up->append(bytes_of("more")));
    CHECK(count_files(directory.path()) == 2);
  }
  CHECK(count_files(directory.path()) == 1);
  auto file = NewFile::create(path, true);
  REQUIRE(file);
  REQUIRE(file->append(bytes_of("new")));
  REQUIRE(file->settle());
  CHECK(test::content_of(path) == "old");
  REQUIRE(file->finish());
  CHECK_FALSE(file->finish());
  CHECK(test::content_of(path) == "new");
  CHECK(count_files(directory.path()) == 1);
}

TEST_CASE("a temporary file that was exchanged for another one gets no name and stays", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  const bool is_settled = GENERATE(false, true);
  CAPTURE(is_settled);
  std::filesystem::path temporary;
  {
    auto file = NewFile::create(path, true);
    REQUIRE(file);
    REQUIRE(file->append(bytes_of("new")));
    if (is_settled) REQUIRE(file->settle());
    temporary = temporary_in(directory.path());
    std::filesystem::rename(temporary, directory / "away");
    std::filesystem::rename(directory.write("private", "private"), temporary);
    const auto done = is_settled ? file->finish_unsynced(path) : file->finish();
    REQUIRE_FALSE(done);
    CHECK(done.error().errno_value == ESTALE);
    CHECK(done.error().message.find(path) == 0);
  }
  CHECK(content_of(path) == "old");
  CHECK(content_of(temporary) == "private");
}

TEST_CASE("a new file in a directory that gives its own group is not for that group", "[core][new_file]") {
  if (::geteuid() != 0) return;  // only root may give directories away
  const test::TemporaryDirectory directory;
  REQUIRE(::chown(directory.path().c_str(), ::geteuid(), 4242) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 02777) == 0);
  const mode_t mask = ::umask(0);
  const auto mode_of_new = [&](const NewFileMode& mode, bool is_there) {
    const std::string path = directory / "file";
    if (is_there) {
      REQUIRE(::chmod(directory.write("file", "old").c_str(), 0660) == 0);
    }
    auto file = NewFile::create(path, true, mode);
    REQUIRE(file);
    CHECK((access_of(temporary_in(directory.path())).first & 0070U) <= (is_there ? 0U : mode.mode & 0070U));
    REQUIRE(file->finish());
    const mode_t made = access_of(path).first;
    std::filesystem::remove(path);
    return made;
  };
  for (const bool is_there : {false, true}) {
    CAPTURE(is_there);
    CHECK(mode_of_new({.mode = 0640, .group = ::getegid()}, is_there) == 0600);
    CHECK((mode_of_new({.mode = 0604, .group = ::getegid()}, is_there) & 0077U) == 0);
    CHECK(mode_of_new({.mode = 0640, .group = 4242}, is_there) == 0640);
  }
  CHECK(mode_of_new({.mode = 0664, .group = ::getegid()}, false) == 0644);
  CHECK(mode_of_new({.mode = 0640}, false) == 0640);
  ::umask(mask);
}

TEST_CASE("a mode that two files give is for a group of both", "[core][new_file]") {
  const NewFileMode one{.mode = 0664, .group = 1};
  CHECK(strictest({}, one).mode == 0664);
  CHECK(strictest({}, one).in_group(1) == 0664);
  CHECK(strictest({}, one).in_group(2) == 0644);
  CHECK(strictest(one, {.mode = 0640, .group = 1}).in_group(1) == 0640);
  CHECK(strictest(one, {.mode = 0640, .group = 2}).in_group(1) == 0600);
  CHECK(strictest(one, {.mode = 0640, .group = 2}).in_group(2) == 0600);
  CHECK(strictest({.mode = 0640, .group = 2}, one).in_group(1) == 0600);
}

TEST_CASE("files of one owner have that owner together, and files of several have none", "[core][new_file]") {
  const NewFileMode mine{.owner = 5};
  CHECK(strictest({}, mine).owner == 5U);
  CHECK(strictest(mine, {}).owner == 5U);
  CHECK(strictest(mine, mine).owner == 5U);
  CHECK(strictest(mine, {.owner = 6}).owner == NewFileMode::kNoUser);
  CHECK(strictest(strictest(mine, {.owner = 6}), mine).owner == NewFileMode::kNoUser);
}

TEST_CASE("a file that another user may have planted gives its mode and owner to no other",
          "[core][new_file]") {
  if (::geteuid() != 0) return;  // only root may give files away
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "planted");
  const mode_t mask = ::umask(027);
  const auto plant = [&](uid_t owner, mode_t mode, uid_t directory_owner, mode_t directory_mode) {
    REQUIRE(::chown(path.c_str(), owner, owner) == 0);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    REQUIRE(::chown(directory.path().c_str(), directory_owner, 0) == 0);
    REQUIRE(::chmod(directory.path().c_str(), directory_mode) == 0);
  };
  const auto takes = [&](uid_t owner, mode_t made_mode, uid_t of_sources = 0) {
    NewFileMode mode{.mode = 0640, .owner = of_sources};
    if (of_sources != 0) mode.group = of_sources;
    const auto made = replaced(path, mode);
    CHECK(made.st_uid == owner);
    CHECK((made.st_mode & 07777U) == made_mode);
  };
  SECTION("where everybody or the group may write") {
    for (const mode_t open_to : {01777U, 0777U, 0775U}) {
      CAPTURE(open_to);
      plant(4321, 0666, 0, open_to);
      takes(0, 0640);
    }
  }
  // The owner of the sources may own the new file.
  SECTION("but in a private directory") {
    plant(4321, 0660, 0, 0755);
    takes(4321, 0640, 4321);
  }
  SECTION("and of the directory's owner") {
    plant(4321, 0660, 4321, 0777);
    takes(4321, 0640, 4321);
  }
  SECTION("a file of this process's user with another name") {
    plant(0, 0606, 0, 0777);
    takes(0, 0600, 0);
    plant(0, 0606, 0, 0777);
    std::filesystem::create_hard_link(path, directory / "other");
    takes(0, 0640);
  }
  ::umask(mask);
}

TEST_CASE("a default list of the directory gives single users no more of a new file than others have",
          "[core][new_file]") {
  const test::TemporaryDirectory directory;
  if (!let_another_user(directory.path(), "system.posix_acl_default")) return;
  const mode_t mask = ::umask(077);  // has no effect beside a default list
  const auto made_as = [&](mode_t mode) {
    const std::string path = directory / std::to_string(mode);
    auto file = NewFile::create(path, false, {.mode = mode});
    REQUIRE(file);
    REQUIRE(file->append(bytes_of("new")));
    REQUIRE(file->finish());
    return access_of(path);
  };
  CHECK(made_as(0600) == std::pair<mode_t, bool>(0600, true));
  CHECK(made_as(0640) == std::pair<mode_t, bool>(0640, false));
  CHECK(made_as(0660) == std::pair<mode_t, bool>(0660, false));
  CHECK(made_as(0644) == std::pair<mode_t, bool>(0644, true));
  CHECK(made_as(0666) == std::pair<mode_t, bool>(0664, true));
  CHECK(count_files(directory.path()) == 5);
  ::umask(mask);
}

TEST_CASE("a file that replaces another one keeps nothing of a default list", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  if (!let_another_user(directory.path(), "system.posix_acl_default")) return;
  static_cast<void>(replaced(path));
  CHECK(access_of(path) == std::pair<mode_t, bool>(0640, false));
  // The new file gets the list of the replaced file, unless its sources are for fewer users.
  REQUIRE(let_another_user(path, "system.posix_acl_access"));
  static_cast<void>(replaced(path, {}));
  CHECK(access_of(path) == std::pair<mode_t, bool>(0664, true));
  static_cast<void>(replaced(path));
  CHECK(access_of(path) == std::pair<mode_t, bool>(0640, false));
}

TEST_CASE("a replaced file gives no more than the mode of a new one, whoever may write the directory",
          "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "public, and renamed by another user");
  const mode_t open_to = GENERATE(0777U, 0775U, 01777U, 0755U);
  CAPTURE(open_to);
  REQUIRE(::chmod(directory.path().c_str(), open_to) == 0);
  const auto replace = [&](mode_t there) {
    REQUIRE(::chmod(path.c_str(), there) == 0);
    static_cast<void>(replaced(path));  // with 0640
    return access_of(path);
  };
  CHECK(replace(0644) == std::pair<mode_t, bool>(0640, false));
  CHECK(replace(0666) == std::pair<mode_t, bool>(0640, false));
  CHECK(replace(0600) == std::pair<mode_t, bool>(0600, false));
  CHECK(replace(0604) == std::pair<mode_t, bool>(0600, false));
  if (!let_another_user(path, "system.posix_acl_access")) return;
  static_cast<void>(replaced(path));
  CHECK_FALSE(access_of(path).second);
  CHECK((access_of(path).first & 0037U) == 0);
}

TEST_CASE("the owner of a replaced file owns the new one only if the sources let that user read",
          "[core][new_file]") {
  if (::geteuid() != 0) return;  // only root may give files away
  constexpr uid_t kOther = 4321;
  constexpr uid_t kServiceUser = 4322;
  const test::TemporaryDirectory directory;
  REQUIRE(::chown(directory.path().c_str(), kOther, kOther) == 0);
  const mode_t open_to = GENERATE(0755U, 0777U);
  CAPTURE(open_to);
  REQUIRE(::chmod(directory.path().c_str(), open_to) == 0);
  const std::string path = directory.write("file", "old");
  const auto replace = [&](uid_t owner, const NewFileMode& mode) {
    REQUIRE(::chown(path.c_str(), owner, owner) == 0);
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    const auto made = replaced(path, mode);
    return std::pair<uid_t, mode_t>(made.st_uid, made.st_mode & 0777U);
  };
  using Made = std::pair<uid_t, mode_t>;
  CHECK(replace(kOther, {.mode = 0600, .group = 0, .owner = 0}) == Made(0, 0600));
  CHECK(replace(kOther, {.mode = 0640, .group = 0, .owner = 0}) == Made(0, 0640));
  CHECK(replace(kOther, {.mode = 0600, .group = 0, .owner = NewFileMode::kNoUser}) == Made(0, 0600));
  CHECK(replace(kOther, {.mode = 0604, .group = kOther, .owner = 0}).first == 0);
  // Ordinary uses.
  CHECK(replace(kOther, {.mode = 0644, .group = 0, .owner = 0}) == Made(kOther, 0644));
  CHECK(replace(kOther, {.mode = 0600, .group = kOther, .owner = kOther}) == Made(kOther, 0600));
  CHECK(replace(0, {.mode = 0644, .group = 0, .owner = 0}) == Made(0, 0644));
  CHECK(replace(0, {}) == Made(0, 0644));
  if (open_to != 0755) return;
  REQUIRE(::chown(directory.path().c_str(), 0, 0) == 0);
  CHECK(replace(kServiceUser, {.mode = 0640, .group = kServiceUser, .owner = kServiceUser}) ==
        Made(kServiceUser, 0640));
}

TEST_CASE("a new file stays in the directory that was opened", "[core][new_file]") {
  const test::TemporaryDirectory place;
  const bool is_finished = GENERATE(true, false);
  CAPTURE(is_finished);
  std::filesystem::create_directory(place / "outputs");
  std::filesystem::create_directory(place / "private");
  const std::string path = place / "outputs/file";
  {
    auto file = NewFile::create(path, true);
    REQUIRE(file);
    REQUIRE(file->append(bytes_of("new")));
    std::filesystem::rename(place / "outputs", place / "moved");
    std::filesystem::rename(place / "private", place / "outputs");
    if (is_finished) REQUIRE(file->finish());
  }
  CHECK(count_files(place / "outputs") == 0);
  CHECK(count_files(place / "moved") == (is_finished ? 1 : 0));
  if (is_finished) CHECK(content_of(place / "moved/file") == "new");
}

TEST_CASE("an attribute of a directory that is in no mount forbids no new file", "[core][new_file]") {
  const test::TemporaryDirectory place;
  std::filesystem::create_directories(place / "above/below");
  if (::setxattr((place / "above").c_str(), kArchiveAttribute, "x", 1, 0) != 0) {
    test::note_skip("the file system of temporary files has no attributes of users");
    return;
  }
  for (const char* path : {"above/file", "above/below/file"}) {
    auto file = NewFile::create(place / path, false);
    REQUIRE(file);
    REQUIRE(file->finish());
  }
}
