// Tests the tree with the kernel's requests: look-up, attributes, directories and statfs.
#include "tests/fs/driven_filesystem.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct Listed {
  std::string name;
  Ino ino = 0;
  std::uint64_t next = 0;
};

/// Reads a directory as getdents does with a buffer for `at_once` entries.
std::vector<Listed> list(const MountedModel& filesystem, Ino directory, std::size_t at_once) {
  std::vector<Listed> all;
  std::uint64_t position = 0;
  for (;;) {
    std::vector<Listed> part;
    const auto read = filesystem.read_directory(directory, position,
                                                [&](std::string_view name, Ino ino, std::uint64_t next) {
                                                  if (part.size() == at_once) return false;
                                                  part.push_back({std::string(name), ino, next});
                                                  return true;
                                                });
    if (!read) throw std::runtime_error(read.error().message);
    if (part.empty()) return all;
    position = part.back().next;
    all.insert(all.end(), part.begin(), part.end());
  }
}

}  // namespace

TEST_CASE("a tensor is a regular file of exactly its bytes", "[fs][filesystem][tree]") {
  const DrivenFilesystem mount({{"three", "abc"}, {"none", ""}, {"large", std::string(100'000, 'x')}});
  const auto st = mount->lookup(kRootIno, "three");
  REQUIRE(st);
  CHECK(S_ISREG(st->st_mode));
  CHECK(st->st_size == 3);
  CHECK(st->st_blocks == 1);
  CHECK(st->st_nlink == 1);
  CHECK(mount->lookup(kRootIno, "none")->st_size == 0);
  CHECK(mount->lookup(kRootIno, "large")->st_blocks == (100'000 + 511) / 512);
  CHECK(mount->attributes(st->st_ino)->st_ino == st->st_ino);
}

TEST_CASE("owner, mode and time are the archive's", "[fs][filesystem][tree]") {
  DrivenFilesystem mount;
  REQUIRE(::chmod(mount.path().c_str(), 04750) == 0);
  mount.open();
  struct stat archive {};
  REQUIRE(::stat(mount.path().c_str(), &archive) == 0);
  const auto st = mount->attributes(mount.ino("first"));
  CHECK((st->st_mode & 07777) == 0640);  // nothing in here is a program
  CHECK(st->st_uid == archive.st_uid);
  CHECK(st->st_gid == archive.st_gid);
  CHECK(st->st_mtim.tv_sec == archive.st_mtim.tv_sec);
  CHECK(st->st_mtim.tv_nsec == archive.st_mtim.tv_nsec);
  CHECK((mount->attributes(kRootIno)->st_mode & 07777) == 0750);  // a user who may read may enter
  CHECK(S_ISDIR(mount->attributes(kRootIno)->st_mode));
}

TEST_CASE("uid, gid, umask and ro show in every file", "[fs][filesystem][tree]") {
  DrivenFilesystem mount;
  REQUIRE(::chmod(mount.path().c_str(), 0666) == 0);
  MountedModelOptions options;
  options.is_read_only = true;
  options.uid = 1234;
  options.gid = 0;
  options.umask = 007;
  mount.open(options);
  const auto st = mount->attributes(mount.ino("first"));
  CHECK(st->st_uid == 1234);
  CHECK(st->st_gid == 0);
  CHECK((st->st_mode & 07777) == 0440);
  CHECK((mount->attributes(kRootIno)->st_mode & 07777) == 0550);
  CHECK(mount->attributes(kRootIno)->st_uid == 1234);
  options = {};
  options.umask = 022;
  mount.open(options);
  CHECK((mount->attributes(mount.ino("first"))->st_mode & 07777) == 0644);
}

TEST_CASE("an archive that was opened for reading makes a read-only mount", "[fs][filesystem][tree]") {
  const DrivenFilesystem writable;
  CHECK_FALSE(writable->is_read_only());
  const MountedModel filesystem(Archive::open(writable.path(), Access::ReadOnly).value(), {});
  CHECK(filesystem.is_read_only());
  CHECK((filesystem.statistics().f_flag & ST_RDONLY) != 0);
  CHECK_FALSE(filesystem.free_space());
}

TEST_CASE("what does not exist is ENOENT", "[fs][filesystem][tree]") {
  const DrivenFilesystem mount;
  CHECK(errno_of(mount->lookup(kRootIno, "third")) == ENOENT);
  CHECK(errno_of(mount->lookup(kRootIno, "")) == ENOENT);
  CHECK(errno_of(mount->lookup(99, "first")) == ENOENT);
  CHECK(errno_of(mount->lookup(mount.ino("first"), "first")) == ENOENT);
  for (const Ino ino : {Ino{0}, Ino{4}, ~Ino{0}, Ino{1} << 32U}) {
    CAPTURE(ino);
    CHECK(errno_of(mount->attributes(ino)) == ENOENT);
    CHECK(errno_of(mount->read(ino, 0, 1)) == ENOENT);
    CHECK(errno_of(mount->open(ino, O_RDONLY, 1)) == ENOENT);
    CHECK(errno_of(mount->resize_by_name(ino, 0, 1)) == ENOENT);
    CHECK(errno_of(mount->extended_attribute(ino, "user.safetensors.name")) == ENOENT);
    CHECK(errno_of(mount->list_extended_attributes(ino)) == ENOENT);
    CHECK(errno_of(mount->read_directory(ino, 0, [](auto, auto, auto) { return true; })) == ENOENT);
    mount->set_mtime(ino, {1, 2});
  }
}

TEST_CASE("a directory gives itself, its parent and its children once, wherever the reader resumes",
          "[fs][filesystem][tree]") {
  const DrivenFilesystem mount({{"a.x", "1"}, {"a.y", "2"}, {"b", "3"}}, kTreeLayout);
  for (const std::size_t at_once : {1U, 2U, 3U, 100U}) {
    CAPTURE(at_once);
    const auto root = list(*mount, kRootIno, at_once);
    REQUIRE(root.size() == 4);
    CHECK(root[0].name == ".");
    CHECK(root[0].ino == kRootIno);
    CHECK(root[1].name == "..");
    CHECK(root[1].ino == kRootIno);
    const Ino a = mount.ino("a");
    const auto inside = list(*mount, a, at_once);
    REQUIRE(inside.size() == 4);
    CHECK(inside[0].ino == a);
    CHECK(inside[1].ino == kRootIno);
    CHECK(inside[2].name == "x");
    CHECK(inside[3].name == "y");
    CHECK(mount->lookup(a, "y")->st_ino == inside[3].ino);
  }
}

TEST_CASE("reading a directory from behind its end gives nothing", "[fs][filesystem][tree]") {
  const DrivenFilesystem mount;
  for (const std::uint64_t position : {std::uint64_t{4}, std::uint64_t{1000}, ~std::uint64_t{0}}) {
    int visits = 0;
    CHECK(mount->read_directory(kRootIno, position, [&](auto, auto, auto) { return ++visits > 0; }));
    CHECK(visits == 0);
  }
}

TEST_CASE("a file is no directory, and a directory no file", "[fs][filesystem][tree]") {
  const DrivenFilesystem mount({{"a.x", "1"}}, kTreeLayout);
  const Ino directory = mount.ino("a");
  const Ino file = mount.ino("x", directory);
  CHECK(errno_of(mount->read_directory(file, 0, [](auto, auto, auto) { return true; })) == ENOTDIR);
  CHECK(errno_of(mount->read(directory, 0, 1)) == EISDIR);
  CHECK(errno_of(mount->open(directory, O_RDONLY, 1)) == EISDIR);
  CHECK(errno_of(mount->open(directory, O_RDWR, 1)) == EISDIR);
  CHECK(errno_of(mount->resize_by_name(directory, 0, 1)) == EISDIR);
}

TEST_CASE("a directory's links are itself, its entry and its subdirectories", "[fs][filesystem][tree]") {
  const DrivenFilesystem mount({{"a.b.x", "1"}, {"a.c.x", "2"}, {"a.y", "3"}}, kTreeLayout);
  CHECK(mount->attributes(kRootIno)->st_nlink == 3);
  CHECK(mount->attributes(mount.ino("a"))->st_nlink == 4);
  CHECK(mount->attributes(mount.ino("b", mount.ino("a")))->st_nlink == 2);
}

TEST_CASE("the statistics tell the size of the model, and the free space of its store",
          "[fs][filesystem][tree]") {
  const DrivenFilesystem mount({{"large", std::string(100'000, 'x')}});
  struct statvfs st = mount->statistics();
  CHECK(st.f_blocks * st.f_frsize >= 100'000);
  CHECK(st.f_blocks * st.f_frsize < 110'000);
  CHECK(st.f_bfree == 0);
  CHECK(st.f_bavail == 0);
  CHECK(st.f_ffree == 0);
  CHECK(st.f_namemax == 255);
  CHECK((st.f_flag & ST_RDONLY) == 0);
  const auto space = mount->free_space();
  REQUIRE(space);
  CHECK(space->free_bytes >= space->available_bytes);
  add_free_space({.device = 1, .free_bytes = 81'920, .available_bytes = 40'960}, st);
  CHECK(st.f_blocks * st.f_frsize >= 181'920);
  CHECK(st.f_bfree == 20);
  CHECK(st.f_bavail == 10);
  CHECK(st.f_favail > 0);
}

TEST_CASE("names that no directory can hold are found under their file names", "[fs][filesystem][tree]") {
  const DrivenFilesystem mount({{"a/b", "1"}, {"", "2"}, {"..", "3"}, {std::string("n\0l", 3), "4"}});
  CHECK(mount.read("a%2Fb") == "1");
  CHECK(mount.read("%") == "2");
  CHECK(mount.read("%2E%2E") == "3");
  CHECK(mount.read("n%00l") == "4");
  CHECK(mount.attribute("n%00l", "name") == std::string("n\0l", 3));
}
