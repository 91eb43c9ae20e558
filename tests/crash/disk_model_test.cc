// The model of the disk forgets what POSIX lets a disk forget, and nothing else.
#include "tests/support/disk_model.h"

#include <sys/mman.h>

#include <set>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/disk_crash.h"

namespace stfs::test {
namespace {

constexpr std::string_view kFile = "/d/file";

std::vector<std::byte> bytes(std::size_t size, char value) {
  return {size, static_cast<std::byte>(value)};
}

/// Every state in which a loss of power may leave the file's content, whole blocks, as text of one letter
/// each.
std::set<std::string> states_of(const DiskImage& image, std::string_view path = kFile) {
  std::set<std::string> states;
  EveryChoice choices;
  do {
    const DiskImage after = after_power_loss(image, choices);
    const InodeNumber inode = after.inode_at(path);
    std::string state = inode == 0 ? "-" : "";
    if (inode != 0) {
      const auto content = after.content(inode);
      for (std::size_t at = 0; at < content.size(); at += kDiskBlockBytes) {
        state += content[at] == std::byte{0} ? '0' : static_cast<char>(content[at]);
      }
    }
    states.insert(state);
  } while (choices.next());
  return states;
}

using States = std::set<std::string>;

}  // namespace

TEST_CASE("disk model: unsynced blocks are kept or dropped, each on its own", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(2 * kDiskBlockBytes, 'a'));
  const auto process = disk.start_process();
  auto file = process->open(kFile, Access::ReadWrite);
  REQUIRE(file);
  CHECK(states_of(disk.image()) == States{"aa"});
  REQUIRE((*file)->write(bytes(2 * kDiskBlockBytes, 'b'), 0));
  CHECK(states_of(disk.image()) == States{"aa", "ab", "ba", "bb"});
  REQUIRE((*file)->write(bytes(1, 'c'), 0));
  CHECK(states_of(disk.image()) == States{"aa", "ab", "ba", "bb", "ca", "cb"});
  REQUIRE((*file)->sync());
  CHECK(states_of(disk.image()) == States{"cb"});
}

TEST_CASE("disk model: random losses of power tear blocks at sectors", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(kDiskBlockBytes, 'a'));
  const auto process = disk.start_process();
  auto file = process->open(kFile, Access::ReadWrite);
  REQUIRE((*file)->write(bytes(kDiskBlockBytes, 'b'), 0));
  RandomChoices choices(3);
  std::set<std::vector<std::byte>> states;
  for (int times = 0; times < 2000; ++times) {
    const DiskImage after = after_random_power_loss(disk.image(), choices);
    const auto content = after.content(after.inode_at(kFile));
    states.insert(content);
    for (std::size_t at = 0; at < content.size(); ++at) {
      if (content[at] != content[at - at % kSectorBytes]) FAIL("torn within a sector");
    }
  }
  CHECK(states.size() > 100);
}

TEST_CASE("disk model: a name is only settled by a sync of its directory", "[crash][model]") {
  DiskModel disk;
  disk.put("/d/other", bytes(1, 'x'));
  const auto process = disk.start_process();
  auto file = process->create_unnamed("/d/fallback");
  REQUIRE((*file)->write(bytes(kDiskBlockBytes, 'a'), 0));
  CHECK(states_of(disk.image()) == States{"-"});
  REQUIRE((*file)->sync());
  REQUIRE(process->publish(**file, kFile));
  CHECK(process->publish(**file, "/d/twice").error().errno_value == ENOENT);
  REQUIRE((*file)->sync());
  CHECK(states_of(disk.image()) == States{"-", "a"});
  REQUIRE(process->sync_directory("/d"));
  CHECK(states_of(disk.image()) == States{"a"});
  REQUIRE(process->remove(kFile));
  CHECK(process->status(kFile).error().errno_value == ENOENT);
  CHECK(states_of(disk.image()) == States{"-", "a"});
  REQUIRE(process->sync_directory("/d"));
  CHECK(states_of(disk.image()) == States{"-"});
}

TEST_CASE("disk model: a file may be named before its bytes are there", "[crash][model]") {
  DiskModel disk;
  const auto process = disk.start_process();
  auto file = process->create_unnamed("/d/fallback");
  REQUIRE((*file)->write(bytes(kDiskBlockBytes, 'a'), 0));
  REQUIRE(process->publish(**file, kFile));
  REQUIRE(process->sync_directory("/d"));
  // Nothing of it, its size without its bytes, its bytes.
  CHECK(states_of(disk.image()) == States{"", "0", "a"});
}

TEST_CASE("disk model: without unnamed files the fallback name is there from the start", "[crash][model]") {
  DiskModel disk({.has_unnamed = false});
  auto process = disk.start_process();
  auto file = process->create_unnamed("/d/fallback");
  REQUIRE((*file)->write(bytes(kDiskBlockBytes, 'a'), 0));
  CHECK(process->create_unnamed("/d/fallback").error().errno_value == EEXIST);
  CHECK(process->list("/d", "fall")->size() == 1);
  CHECK(after_kill(disk.image()).inode_at("/d/fallback") != 0);
  REQUIRE(process->publish(**file, kFile));
  CHECK(process->list("/d", "f") == std::vector<std::string>{"file"});
  CHECK(states_of(disk.image(), "/d/fallback") == States{"-", "", "0", "a"});
  // A rename is atomic: one name or the other, or none as at the beginning.
  EveryChoice choices;
  do {
    const DiskImage after = after_power_loss(disk.image(), choices);
    CHECK((after.inode_at("/d/fallback") == 0 || after.inode_at(kFile) == 0));
  } while (choices.next());
}

TEST_CASE("disk model: after a failed sync the pages are clean and wrong", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(2 * kDiskBlockBytes, 'a'));
  const auto process = disk.start_process();
  auto file = process->open(kFile, Access::ReadWrite);
  REQUIRE((*file)->write(bytes(2 * kDiskBlockBytes, 'b'), 0));
  dynamic_cast<LossyFile&>(**file).fail_sync();
  std::vector<std::byte> read(1);
  REQUIRE((*file)->read(read, 0));
  CHECK(read == bytes(1, 'b'));
  REQUIRE((*file)->sync());
  CHECK(states_of(disk.image()) == States{"aa", "ab", "ba", "bb"});
  // What is written again is dirty again.
  REQUIRE((*file)->write(bytes(1, 'c'), 0));
  REQUIRE((*file)->sync());
  CHECK(states_of(disk.image()) == States{"ca", "cb"});
}

TEST_CASE("disk model: a killed process loses locks and nameless files, not what it wrote",
          "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(kDiskBlockBytes, 'a'));
  const auto process = disk.start_process();
  auto file = process->open(kFile, Access::ReadWrite);
  auto nameless = process->create_unnamed("/d/fallback");
  REQUIRE((*nameless)->write(bytes(1, 'n'), 0));
  REQUIRE((*file)->write(bytes(kDiskBlockBytes, 'b'), 0));
  REQUIRE((*file)->try_lock({0, 10}, LockKind::Exclusive));
  process->kill();
  CHECK_FALSE(disk.has_locks_held());
  CHECK((*file)->write(bytes(1, 'c'), 0).error().errno_value == EIO);
  const DiskImage after = after_kill(disk.image());
  CHECK(after.has_content(after.inode_at(kFile), bytes(kDiskBlockBytes, 'b')));
  CHECK(after.size_bytes(2) == 0);
  CHECK(states_of(after) == States{"a", "b"});
}

TEST_CASE("disk model: locks belong to open files and conflict between them", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(1, 'a'));
  const auto one = disk.start_process();
  const auto other = disk.start_process();
  auto first = one->open(kFile, Access::ReadWrite);
  auto second = one->open(kFile, Access::ReadWrite);
  auto third = other->open(kFile, Access::ReadOnly);
  const auto is_free = [](auto& file, ByteRange range, LockKind kind) {
    return !(*file)->try_lock(range, kind)->has_value();
  };
  CHECK(is_free(first, {0, 100}, LockKind::Exclusive));
  CHECK(is_free(first, {50, 100}, LockKind::Exclusive));
  CHECK_FALSE(is_free(second, {99, 1}, LockKind::Shared));
  CHECK_FALSE(is_free(third, {0, 1}, LockKind::Shared));
  (*first)->unlock({10, 20});
  CHECK(is_free(third, {10, 20}, LockKind::Shared));
  CHECK(is_free(second, {10, 20}, LockKind::Shared));
  CHECK_FALSE(is_free(first, {10, 1}, LockKind::Exclusive));
  CHECK((*third)->try_lock({500, 1}, LockKind::Exclusive).error().errno_value == EBADF);
  second->reset();
  third->reset();
  CHECK(is_free(first, {10, 1}, LockKind::Exclusive));
  first->reset();
  CHECK_FALSE(disk.has_locks_held());
}

TEST_CASE("disk model: a mapping shows what is written", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(2 * kDiskBlockBytes, 'a'));
  const auto process = disk.start_process();
  auto file = process->open(kFile, Access::ReadWrite);
  void* map = ::mmap(nullptr, 2 * kDiskBlockBytes, PROT_READ, MAP_SHARED, (*file)->descriptor(), 0);
  REQUIRE(map != MAP_FAILED);
  const char* mapped = static_cast<const char*>(map);
  CHECK(mapped[kDiskBlockBytes] == 'a');
  REQUIRE((*file)->write(bytes(3, 'b'), kDiskBlockBytes - 1));
  CHECK(std::string(mapped + kDiskBlockBytes - 2, 5) == "abbba");
  ::munmap(map, 2 * kDiskBlockBytes);
}

TEST_CASE("disk model: cloned blocks are the source's at that moment", "[crash][model]") {
  DiskModel disk({.has_clone = true});
  disk.put(kFile, bytes(kDiskBlockBytes, 'a'));
  disk.put("/d/source", bytes(kDiskBlockBytes, 's'));
  const auto process = disk.start_process();
  auto file = process->open(kFile, Access::ReadWrite);
  auto source = process->open("/d/source", Access::ReadWrite);
  CHECK((*file)->clone_from(**source, 0, {0, 1}).error().errno_value == EINVAL);
  REQUIRE((*file)->clone_from(**source, 0, {0, kDiskBlockBytes}));
  REQUIRE((*source)->write(bytes(1, 't'), 0));
  CHECK(states_of(disk.image()) == States{"a", "s"});
  REQUIRE((*file)->sync());
  CHECK(states_of(disk.image()) == States{"s"});
}

}  // namespace stfs::test
