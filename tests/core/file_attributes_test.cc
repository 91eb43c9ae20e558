// core/storage/file_attributes.h: looks up the file of a name once. new_file_test.cc tests the rest.
#include "core/storage/file_attributes.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"
#include "tests/core/access_list.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a file is looked up by its name, and a link is not followed", "[core][file_attributes]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", "bytes");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  const auto found = look_up_file(system_storage(), path);
  REQUIRE(found);
  CHECK((found->status.mode & 07777U) == 0640);
  CHECK(found->status.uid == ::geteuid());
  CHECK(found->status.identity.same_file(system_storage().status(path).value().identity));
  CHECK_FALSE(found->may_be_planted);
  std::filesystem::create_symlink(path, directory / "link");
  CHECK(errno_of(look_up_file(system_storage(), directory / "link")) == ELOOP);
  CHECK(errno_of(look_up_file(system_storage(), directory / "absent")) == ENOENT);
  // A pipe without a reader and a writer: the look-up does not wait for one.
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(look_up_file(system_storage(), directory / "pipe"));
}

TEST_CASE("a file that is looked up may be planted where others may write", "[core][file_attributes]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to have a file of another user");
    return;
  }
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", "bytes");
  REQUIRE(::chown(path.c_str(), 12345, 12345) == 0);
  CHECK_FALSE(look_up_file(system_storage(), path)->may_be_planted);
  REQUIRE(::chmod(directory.path().c_str(), 0777) == 0);
  CHECK(look_up_file(system_storage(), path)->may_be_planted);
  CHECK(look_up_file(system_storage(), path)->status.uid == 12345);
}

TEST_CASE("what is open by its path alone has its access control list, too", "[core][file_attributes]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", "bytes");
  // u::rw u:4242:rw g::--- m::rw o::---: the mode says 0660, but the group has no right.
  const std::string list = access_list(
      {{kAclUserObject, 6}, {kAclUser, 6, 4242}, {kAclGroupObject, 0}, {kAclMask, 6}, {kAclOther, 0}});
  for (const auto& at : {std::filesystem::path(path), directory.path()}) {
    if (::setxattr(at.c_str(), "system.posix_acl_access", list.data(), list.size(), 0) != 0) {
      note_skip("the file system of temporary files has no access control lists");
      return;
    }
  }
  CHECK((look_up_file(system_storage(), path)->status.mode & 0777U) == 0600);
  for (const LastLink link : {LastLink::Refused, LastLink::Followed}) {
    const auto opened = open_directory(system_storage(), directory.path(), link).value();
    CHECK((opened.status.mode & 0777U) == 0660);
    CHECK((strict_status_of(opened.status, opened.fd.get()).mode & 0777U) == 0600);
    CHECK(has_access_list(opened.fd.get()));
  }
}
