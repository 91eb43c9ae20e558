// The model of the disk loses exactly the changes that POSIX lets a disk lose.
#include "tests/support/disk_model.h"

#include <sys/mman.h>

#include <set>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/disk_crash.h"
#include "tests/support/lossy.h"

namespace stfs::test {
namespace {

constexpr std::string_view kFile = "/d/file";

std::vector<std::byte> bytes(std::size_t size, char value) {
  return {size, static_cast<std::byte>(value)};
}

/// Every content of the file that a loss of power may leave, in whole blocks, as text with a letter for each
/// block.
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
  // The write is lost, only its size is there, or its bytes are there.
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
  // A rename is atomic: the file has one name or the other, or no name as at the beginning.
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
  // A block that is written again is dirty again.
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

TEST_CASE("disk model: permissions count for the first of owner, group and others that fits",
          "[crash][model]") {
  const DiskUser owner{.uid = 1, .gid = 10};
  const DiskUser member{.uid = 2, .gid = 20, .groups = {30}};
  const DiskUser other{.uid = 3, .gid = 40};
  struct Row {
    std::uint32_t permissions;
    std::string may;  // permissions of root, owner, member and others: r, w, both or none
  };
  const Row rows[] = {{0600, "b b - -"}, {0660, "b b b -"}, {0644, "b b r r"},
                      {0666, "b b b b"}, {0060, "b - b -"}, {0006, "b - - b"}};
  for (const Row& row : rows) {
    DiskModel disk;
    disk.put(kFile, bytes(1, 'a'), {.uid = 1, .gid = 30, .permissions = row.permissions});
    std::string may;
    for (const DiskUser& user : {DiskUser{}, owner, member, other}) {
      const auto process = disk.start_process(user);
      const auto reads = process->open(kFile, Access::ReadOnly);
      const auto writes = process->open(kFile, Access::ReadWrite);
      if (!reads) CHECK(reads.error().errno_value == EACCES);
      if (!writes) CHECK(writes.error().errno_value == EACCES);
      may += may.empty() ? "" : " ";
      may += writes ? "b" : reads ? "r" : "-";
    }
    CHECK(may == row.may);
  }
}

TEST_CASE("disk model: a new file is its maker's, and only he gives it away", "[crash][model]") {
  const DiskUser maker{.uid = 1, .gid = 10, .groups = {30}};
  const DiskUser member{.uid = 2, .gid = 20, .groups = {30}};
  DiskModel disk;
  const auto process = disk.start_process(maker);
  auto file = process->create_unnamed("/d/fallback");
  REQUIRE(process->publish(**file, kFile));
  const auto other = disk.start_process(member);
  CHECK(other->open(kFile, Access::ReadOnly).error().errno_value == EACCES);
  CHECK((*file)->set_owner(2, 30).error().errno_value == EPERM);
  CHECK((*file)->set_owner(1, 20).error().errno_value == EPERM);
  REQUIRE((*file)->set_owner(1, 30));
  REQUIRE((*file)->set_mode(0660));
  auto theirs = other->open(kFile, Access::ReadWrite);
  REQUIRE(theirs);
  CHECK((*theirs)->set_mode(0666).error().errno_value == EPERM);
  CHECK((*theirs)->set_owner(2, 30).error().errno_value == EPERM);
  const auto status = other->status(kFile);
  CHECK(status->uid == 1);
  CHECK(status->gid == 30);
  CHECK((status->mode & 07777) == 0660);
  auto root = disk.start_process();
  auto roots = root->open(kFile, Access::ReadWrite);
  REQUIRE((*roots)->set_owner(7, 8));
  CHECK(root->status(kFile)->uid == 7);
  CHECK(process->user() == 1);
}

TEST_CASE("disk model: the directory's permissions decide about names", "[crash][model]") {
  const DiskUser owner{.uid = 1, .gid = 10};
  const DiskUser member{.uid = 2, .gid = 20, .groups = {30}};
  const DiskUser other{.uid = 3, .gid = 40};
  DiskModel disk({.directory = {.uid = 1, .gid = 30, .permissions = 03751}});
  disk.put(kFile, bytes(1, 'a'), {.uid = 1, .gid = 1, .permissions = 0666});
  const auto reads = disk.start_process(member);
  CHECK(reads->list("/d", "f"));
  CHECK(reads->sync_directory("/d"));
  CHECK(reads->create_unnamed("/d/fallback").error().errno_value == EACCES);
  CHECK(reads->remove(kFile).error().errno_value == EACCES);
  const auto searches = disk.start_process(other);
  CHECK(searches->list("/d", "f").error().errno_value == EACCES);
  CHECK(searches->sync_directory("/d").error().errno_value == EACCES);
  CHECK(searches->open(kFile, Access::ReadWrite));
  CHECK(searches->status(kFile));
  const auto writes = disk.start_process(owner);
  auto made = writes->create_unnamed("/d/fallback");
  REQUIRE(made);
  CHECK((*made)->status()->gid == 30);  // set-group-ID of the directory
  CHECK(writes->remove(kFile));

  // In a sticky directory, others' files stay.
  DiskModel sticky({.directory = {.uid = 9, .gid = 9, .permissions = 01777}});
  sticky.put(kFile, bytes(1, 'a'), {.uid = 1, .gid = 1, .permissions = 0666});
  CHECK(sticky.start_process(other)->remove(kFile).error().errno_value == EPERM);
  CHECK(sticky.start_process(owner)->remove(kFile));
}

TEST_CASE("disk model: each host has its own view of device, birth and boot", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(1, 'a'));
  const DiskMount here{.device = 5, .has_birth_times = true, .boot = {.id = {1}, .host = 1}};
  const DiskMount there{.device = 6, .has_birth_times = false, .boot = {.id = {2}, .host = 2}};
  const auto one = disk.start_process({}, here);
  const auto two = disk.start_process({}, there);
  CHECK(one->status(kFile)->identity.device == 5);
  CHECK(one->status(kFile)->birth_ns != 0);
  CHECK(two->status(kFile)->identity.device == 6);
  CHECK(two->status(kFile)->birth_ns == 0);
  CHECK(one->status(kFile)->identity.inode == two->status(kFile)->identity.inode);
  CHECK(one->boot() == here.boot);
  CHECK(two->boot() == there.boot);
  // The disk keeps the locks, so they hold across hosts.
  auto first = one->open(kFile, Access::ReadWrite);
  auto second = two->open(kFile, Access::ReadWrite);
  REQUIRE((*first)->try_lock({0, 1}, LockKind::Exclusive));
  CHECK((*second)->try_lock({0, 1}, LockKind::Exclusive)->has_value());
}

TEST_CASE("disk model: a crash of one host takes its locks and what only it knew", "[crash][model]") {
  DiskModel disk;
  const std::vector<std::string> paths = {"/d/own", "/d/seen", "/d/shared", "/d/synced"};
  for (const std::string& path : paths) disk.put(path, bytes(kDiskBlockBytes, 'a'));
  const auto one = disk.start_process({}, {.boot = {.id = {1}, .host = 1}});
  const auto beside = disk.start_process({}, {.boot = {.id = {1}, .host = 1}});
  const auto other = disk.start_process({}, {.boot = {.id = {2}, .host = 2}});
  std::vector<std::unique_ptr<File>> files;
  for (const std::string& path : paths) {
    files.push_back(std::move(*one->open(path, Access::ReadWrite)));
    REQUIRE(files.back()->write(bytes(kDiskBlockBytes, 'b'), 0));
  }
  REQUIRE(files[0]->try_lock({0, 1}, LockKind::Exclusive));
  std::vector<std::byte> there(kDiskBlockBytes);
  REQUIRE((*other->open(paths[1], Access::ReadOnly))->read(there, 0));
  REQUIRE((*other->open(paths[2], Access::ReadWrite))->write(bytes(1, 'b'), 0));
  REQUIRE(files[3]->sync());

  RandomChoices choices(1);
  std::set<char> left;
  for (int times = 0; times < 50; ++times) {
    DiskModel again(disk.options(), disk.image());
    const auto writer = again.start_process({}, {.boot = {.id = {1}, .host = 1}});
    REQUIRE((*writer->open(paths[0], Access::ReadWrite))->write(bytes(kDiskBlockBytes, 'c'), 0));
    again.crash_host(1, choices);
    const DiskImage image = again.image();
    left.insert(static_cast<char>(image.content(image.inode_at(paths[0])).front()));
    CHECK(states_of(image, paths[0]).size() == 1);
  }
  CHECK(left == std::set<char>{'a', 'b', 'c'});

  disk.crash_host(1, choices);
  CHECK(one->is_dead());
  CHECK(beside->is_dead());
  CHECK_FALSE(other->is_dead());
  CHECK_FALSE(disk.has_locks_held());
  const DiskImage image = disk.image();
  for (std::size_t at = 1; at < paths.size(); ++at)
    CHECK(image.has_content(image.inode_at(paths[at]), bytes(kDiskBlockBytes, 'b')));
}

TEST_CASE("disk model: a look for a lock takes none, and needs no permission to write", "[crash][model]") {
  DiskModel disk;
  disk.put(kFile, bytes(1, 'a'));
  const auto process = disk.start_process();
  auto holder = process->open(kFile, Access::ReadWrite);
  auto reader = process->open(kFile, Access::ReadOnly);
  CHECK_FALSE(*(*reader)->is_locked_by_other({0, 1}, LockKind::Exclusive));
  CHECK_FALSE(disk.has_locks_held());
  REQUIRE((*holder)->try_lock({0, 1}, LockKind::Shared));
  CHECK(*(*reader)->is_locked_by_other({0, 1}, LockKind::Exclusive));
  CHECK_FALSE(*(*reader)->is_locked_by_other({0, 1}, LockKind::Shared));
  CHECK_FALSE(*(*reader)->is_locked_by_other({1, 1}, LockKind::Exclusive));
  CHECK_FALSE(*(*holder)->is_locked_by_other({0, 1}, LockKind::Exclusive));
}

TEST_CASE("disk model: a file may have several names", "[crash][model]") {
  DiskModel disk;
  const InodeNumber inode = disk.put(kFile, bytes(1, 'a'));
  const auto process = disk.start_process();
  CHECK(process->status(kFile)->links == 1);
  disk.link(inode, "/d/other");
  CHECK(process->status(kFile)->links == 2);
  CHECK(process->status("/d/other")->identity == process->status(kFile)->identity);
  auto file = process->open("/d/other", Access::ReadWrite);
  REQUIRE((*file)->write(bytes(1, 'b'), 0));
  std::vector<std::byte> read(1);
  auto same = process->open(kFile, Access::ReadOnly);
  REQUIRE((*same)->read(read, 0));
  CHECK(read == bytes(1, 'b'));
  REQUIRE(process->remove(kFile));
  REQUIRE(process->sync_directory("/d"));
  RandomChoices choices(1);
  const DiskImage after = after_random_power_loss(disk.image(), choices);
  CHECK(after.inode_at("/d/other") == inode);
  CHECK(process->status("/d/other")->links == 1);
}

TEST_CASE("disk model: what is removed is gone for who had it open, where the disk is of that kind",
          "[crash][model]") {
  for (const int why : {0, ENOENT, ESTALE}) {
    DiskModel disk({.removed_errno = why});
    disk.put(kFile, bytes(1, 'a'));
    const auto process = disk.start_process();
    auto file = process->open(kFile, Access::ReadWrite);
    auto made = process->create_unnamed("/d/fallback");
    REQUIRE(process->publish(**made, "/d/made"));
    REQUIRE(process->remove(kFile));
    REQUIRE(process->remove("/d/made"));
    std::vector<std::byte> read(1);
    const auto errno_of = [](const auto& result) { return result ? 0 : result.error().errno_value; };
    CHECK(errno_of((*file)->read(read, 0)) == why);
    CHECK(errno_of((*file)->write(read, 0)) == why);
    CHECK(errno_of((*file)->status()) == why);
    CHECK(errno_of((*file)->sync()) == why);
    CHECK(errno_of((*file)->try_lock({0, 1}, LockKind::Shared)) == why);
    CHECK(errno_of((*file)->is_locked_by_other({0, 1}, LockKind::Shared)) == why);
    CHECK((*made)->write(read, 0));  // the maker can write while its descriptor is open
  }
}

}  // namespace stfs::test
