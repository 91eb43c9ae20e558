// Names in the model of the disk: a rename is one step, and a lost directory loses the names in it.
#include <set>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/disk_crash.h"
#include "tests/support/disk_model.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

constexpr const char* kName = "/r/d/name";
constexpr const char* kTemporary = "/r/d/temporary";

/// The files of both names after every possible loss of power: "old", "new" or "-" for none.
std::set<std::string> names_after(const DiskImage& image) {
  std::set<std::string> states;
  EveryChoice choices;
  do {
    const DiskImage after = after_power_loss(image, choices);
    std::string state;
    for (const char* path : {kName, kTemporary}) {
      const InodeNumber inode = after.inode_at(path);
      state += (state.empty() ? "" : " ") + (inode == 0 ? "-" : text_of(after.content(inode)));
    }
    states.insert(state);
  } while (choices.next());
  return states;
}

void write_temporary(Storage& storage) {
  auto file = storage.create(kTemporary, 0600);
  REQUIRE(file);
  REQUIRE((*file)->write(bytes_of("new"), 0));
  REQUIRE((*file)->sync());
}

}  // namespace

TEST_CASE("disk model: a file takes another one's name in one step", "[crash][model]") {
  DiskModel disk;
  disk.put(kName, bytes_of("old"));
  const auto process = disk.start_process();
  write_temporary(*process);
  CHECK(names_after(disk.image()) == std::set<std::string>{"old -", "old new"});
  CHECK(errno_of(process->rename(kTemporary, kName, false)) == EEXIST);
  REQUIRE(process->rename(kTemporary, kName, true));
  CHECK(names_after(disk.image()) == std::set<std::string>{"old -", "old new", "new -"});
  REQUIRE(process->sync_directory("/r/d"));
  CHECK(names_after(disk.image()) == std::set<std::string>{"new -"});
  CHECK(disk.image().links(1) == 0);
}

TEST_CASE("disk model: no two files have one name", "[crash][model]") {
  DiskModel disk;
  disk.put(kTemporary, bytes_of("old"));
  const auto process = disk.start_process();
  CHECK(errno_of(process->create(kTemporary, 0600)) == EEXIST);
  REQUIRE(process->remove(kTemporary));
  write_temporary(*process);
  CHECK(names_after(disk.image()) == std::set<std::string>{"- old", "- -", "- new"});
}

TEST_CASE("disk model: what lies in a directory that is lost is lost too", "[crash][model]") {
  DiskModel disk;
  const auto process = disk.start_process();
  REQUIRE(process->make_directory("/r/d").value());
  CHECK_FALSE(process->make_directory("/r/d").value());
  write_temporary(*process);
  CHECK(errno_of(process->remove_directory("/r/d")) == ENOTEMPTY);
  REQUIRE(process->sync_directory("/r/d"));
  CHECK(names_after(disk.image()) == std::set<std::string>{"- -", "- new"});
  REQUIRE(process->sync_directory("/r"));
  CHECK(names_after(disk.image()) == std::set<std::string>{"- new"});
}

TEST_CASE("disk model: a lock of a whole file ends with its descriptor", "[crash][model]") {
  DiskModel disk;
  disk.put(kName, bytes_of("old"));
  const auto process = disk.start_process();
  auto held = process->try_flock(kName, LockKind::Exclusive);
  REQUIRE((held && *held));
  CHECK_FALSE(process->try_flock(kName, LockKind::Shared).value());
  held->reset();
  CHECK(process->try_flock(kName, LockKind::Shared).value());
}

}  // namespace stfs::test
