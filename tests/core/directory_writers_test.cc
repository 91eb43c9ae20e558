// core/storage/directory_writers.h
#include "core/storage/directory_writers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "core/base/unique_fd.h"
#include "core/storage/enclosed_storage.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct Rights {
  uid_t uid;
  gid_t gid;
  mode_t mode;
};

void give(const std::string& path, const Rights& access) {
  REQUIRE(::chown(path.c_str(), access.uid, access.gid) == 0);
  REQUIRE(::chmod(path.c_str(), access.mode) == 0);
}

/// The result for a directory and a file with this access.
std::string found(const Rights& directory, const Rights& file) {
  const TemporaryDirectory place;
  const std::string path = place.write("file", "bytes");
  give(place.path().string(), directory);
  give(path, file);
  const UniqueFd above(::open(place.path().c_str(), O_PATH | O_CLOEXEC));
  const UniqueFd itself(::open(path.c_str(), O_PATH | O_CLOEXEC));
  return find_writer_who_may_not_read(above.get(), itself.get()).value().value_or("");
}

constexpr uid_t kPublisher = 4321;
constexpr uid_t kOther = 4322;
constexpr gid_t kTeam = 4400;

}  // namespace

TEST_CASE("who may move a file to a directory must have the right to read it", "[core][directory_writers]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to have files of other users");
    return;
  }
  const std::string publisher = "user 4321";
  const Rights own{kPublisher, kPublisher, 0755};
  CHECK(found(own, {0, 0, 0600}) == publisher);
  CHECK(found(own, {0, 0, 0640}) == publisher);
  CHECK(found(own, {0, kPublisher, 0604}) == publisher);
  CHECK(found(own, {kOther, kOther, 0600}) == publisher);
  CHECK(found({0, kTeam, 0775}, {kOther, 0, 0640}) == "group 4400");
  CHECK(found({0, 0, 0777}, {0, 0, 0640}) == "every user");
  CHECK(found({0, 0, 01777}, {0, 0, 0600}) == "every user");
  // What publishers do.
  CHECK(found(own, {kPublisher, kPublisher, 0600}).empty());
  CHECK(found({kPublisher, kPublisher, 0700}, {kPublisher, kPublisher, 0600}).empty());
  CHECK(found(own, {0, 0, 0644}).empty());
  CHECK(found(own, {kOther, kOther, 0444}).empty());
  CHECK(found({0, 0, 0755}, {0, 0, 0600}).empty());
  CHECK(found({0, 0, 0755}, {kOther, kOther, 0600}).empty());
  CHECK(found({kPublisher, kTeam, 02770}, {kPublisher, kTeam, 0660}).empty());
  CHECK(found({kPublisher, kTeam, 02775}, {kPublisher, kTeam, 0600}).empty());
  CHECK(found({0, kTeam, 02775}, {0, kTeam, 0600}).empty());
  CHECK(found({kPublisher, kTeam, 02775}, {kOther, kTeam, 0664}).empty());
  CHECK(found({0, 0, 0777}, {kOther, kOther, 0644}).empty());
}

TEST_CASE("an enclosed storage opens no file that may have been moved there unread",
          "[core][directory_writers]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to have files of other users");
    return;
  }
  const TemporaryDirectory place;
  const std::string path = place.write("file", "private");
  give(place.path().string(), {kPublisher, kPublisher, 0755});
  give(path, {0, 0, 0600});
  const auto storage = EnclosedStorage::open(place.path()).value();
  const auto refused = storage->open(path, Access::ReadOnly);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EPERM);
  CHECK(refused.error().message.find(path + ": belongs to user 0. user 4321 may write its directory") == 0);
  give(path, {0, 0, 0644});
  CHECK(storage->open(path, Access::ReadOnly));
  give(path, {kPublisher, kPublisher, 0600});
  CHECK(storage->open(path, Access::ReadOnly));
}
