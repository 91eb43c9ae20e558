// core/storage/permissions.h: the rights that several files give together, for every user.
#include "core/storage/permissions.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <set>
#include <string>
#include <vector>

#include "tests/core/access_list.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct User {
  uid_t uid;
  std::set<gid_t> groups;
};

/// The kernel's rule: one class of the mode decides.
bool may(const User& user, const Permissions& file, mode_t right) {
  if (user.uid == file.uid) return (file.mode >> 6U & right) != 0;
  if (user.groups.contains(file.gid)) return (file.mode >> 3U & right) != 0;
  return (file.mode & right) != 0;
}

std::vector<User> users() {
  std::vector<User> all;
  for (const uid_t uid : {1U, 2U, 3U}) {
    for (const std::set<gid_t>& groups : {std::set<gid_t>{}, {10}, {20}, {10, 20}})
      all.push_back({uid, groups});
  }
  return all;
}

/// Every way to allow reading, of two owners and two groups.
std::vector<Permissions> files() {
  std::vector<Permissions> all;
  for (const uid_t uid : {1U, 2U}) {
    for (const gid_t gid : {10U, 20U}) {
      for (mode_t classes = 0; classes < 8; ++classes)
        all.push_back({(classes & 4) << 6 | (classes & 2) << 4 | (classes & 1) << 2, uid, gid});
    }
  }
  return all;
}

}  // namespace

TEST_CASE(
    "the strictest of two allows nobody what one of them forbids; the loosest everybody what one allows",
    "[core][permissions]") {
  constexpr mode_t kRead = 4;
  for (const Permissions& one : files()) {
    for (const Permissions& other : files()) {
      const Permissions strict = strictest(one, other);
      const Permissions loose = loosest(one, other);
      REQUIRE((strict.uid == one.uid && loose.gid == one.gid));
      for (const User& user : users()) {
        const bool by_one = may(user, one, kRead);
        const bool by_other = may(user, other, kRead);
        REQUIRE((!may(user, strict, kRead) || (by_one && by_other)));
        REQUIRE((may(user, loose, kRead) || !(by_one || by_other)));
        if (one.uid != other.uid || one.gid != other.gid) continue;
        REQUIRE(may(user, strict, kRead) == (by_one && by_other));
        REQUIRE(may(user, loose, kRead) == (by_one || by_other));
      }
    }
  }
}

TEST_CASE("rights are combined one by one", "[core][permissions]") {
  CHECK(strictest(Permissions{0644, 1, 10}, Permissions{0600, 1, 10}) == Permissions{0600, 1, 10});
  CHECK(strictest(Permissions{0640, 1, 10}, Permissions{0604, 1, 10}) == Permissions{0600, 1, 10});
  CHECK(strictest(Permissions{0600, 1, 10}, Permissions{0600, 2, 10}) == Permissions{0000, 1, 10});
  CHECK(strictest(Permissions{0644, 1, 10}, Permissions{0644, 2, 20}) == Permissions{0444, 1, 10});
  CHECK(loosest(Permissions{0600, 1, 10}, Permissions{0644, 1, 10}) == Permissions{0644, 1, 10});
  CHECK(loosest(Permissions{0600, 1, 10}, Permissions{0600, 2, 10}) == Permissions{0666, 1, 10});
}

TEST_CASE("an access control list takes from group and others what one of its entries forbids",
          "[core][permissions]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", "bytes");
  auto file = system_storage().open(path, Access::ReadOnly).value();
  REQUIRE(::chmod(path.c_str(), 0664) == 0);
  CHECK(permissions_of(*file)->mode == 0664);
  const auto set = [&](unsigned group, unsigned user, unsigned mask, unsigned others) {
    const std::string list = access_list({{kAclUserObject, 6},
                                          {kAclUser, user, 4242},
                                          {kAclGroupObject, group},
                                          {kAclMask, mask},
                                          {kAclOther, others}});
    return ::setxattr(path.c_str(), "system.posix_acl_access", list.data(), list.size(), 0);
  };
  if (set(0, 6, 6, 0) != 0 && errno == EOPNOTSUPP) {
    test::note_skip("the file system of temporary files has no access control lists");
    return;
  }
  // u::rw u:4242:rw g::--- m::rw o::---: the mode says 0660, but the group has no right.
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  REQUIRE((status.st_mode & 0777) == 0660);
  CHECK(permissions_of(*file)->mode == 0600);
  // The list denies one user a right that all others have. Then the result gives no other user that right.
  REQUIRE(set(4, 0, 6, 4) == 0);
  CHECK(permissions_of(*file)->mode == 0600);
  REQUIRE(set(6, 4, 6, 4) == 0);
  CHECK(permissions_of(*file)->mode == 0644);
  // The same for the status of a descriptor.
  REQUIRE(set(0, 6, 6, 0) == 0);
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK(permissions_of(status, file->descriptor()) == Permissions{0600, ::getuid(), status.st_gid});
}
