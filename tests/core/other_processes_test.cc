// core/storage/other_processes.h and lock_holder.h: what /proc says of processes.
#include "core/storage/other_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/storage/lock_holder.h"
#include "support/catch.h"
#include "support/child_process.h"
#include "support/lock_owner.h"
#include "support/temporary_directory.h"

using namespace stfs;
using stfs::test::ChildProcess;
using stfs::test::LockOwner;
using stfs::test::TemporaryDirectory;

namespace {

/// A file and its status.
struct Known {
  explicit Known(const std::string& content) : path(directory.write("a", content)) {
    REQUIRE(::stat(path.c_str(), &status) == 0);
    device = std::uint64_t{gnu_dev_major(status.st_dev)} << 32U | gnu_dev_minor(status.st_dev);
  }
  TemporaryDirectory directory;
  std::string path;
  struct stat status {};
  std::uint64_t device = 0;
};

FileIdentity identity_of(const Known& file) {
  FileIdentity identity;
  identity.device = file.device;
  identity.inode = file.status.st_ino;
  return identity;
}

}  // namespace

TEST_CASE("each process is visited until one is the last", "[core][other_processes]") {
  const ChildProcess child(ChildProcess::Fate::Lives);
  std::vector<pid_t> seen;
  CHECK_FALSE(any_process([&](pid_t process) {
    seen.push_back(process);
    return false;
  }));
  CHECK(std::ranges::count(seen, ::getpid()) == 1);
  CHECK(std::ranges::count(seen, child.pid()) == 1);
  pid_t last = 0;
  CHECK(any_process([&](pid_t process) {
    last = process;
    return process == ::getpid();
  }));
  CHECK(last == ::getpid());
}

TEST_CASE("an open file is known by its device, its inode number and its mode", "[core][other_processes]") {
  const Known file("old");
  REQUIRE(::chmod(file.path.c_str(), 0640) == 0);
  const UniqueFd opened(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::string link = fmt::format("/proc/self/fd/{}", opened.get());
  const auto known = known_file(link);
  REQUIRE(known);
  CHECK(known->device == file.device);
  CHECK(known->inode == file.status.st_ino);
  CHECK(known->mode == (S_IFREG | 0640));
  CHECK_FALSE(known_file("/proc/self/fd/1000000"));
  unsigned found = 0;
  CHECK_FALSE(any_descriptor(::getpid(), [&](const std::string& descriptor, const KnownFile& other) {
    if (descriptor == std::to_string(opened.get()) && other.inode == file.status.st_ino) ++found;
    return false;
  }));
  CHECK(found == 1);
  CHECK(any_descriptor(::getpid(), [](const std::string&, const KnownFile&) { return true; }));
  const ChildProcess ended(ChildProcess::Fate::Exits);  // a zombie has no descriptors
  CHECK_FALSE(any_descriptor(ended.pid(), [](const std::string&, const KnownFile&) { return true; }));
}

TEST_CASE("a process has a name and a status", "[core][other_processes]") {
  const ChildProcess child(ChildProcess::Fate::Lives);
  std::array<char, 16> name{};
  REQUIRE(::prctl(PR_GET_NAME, name.data()) == 0);
  CHECK(comm_of(child.pid()) == name.data());
  CHECK(status_words(child.pid(), "PPid:") == std::vector<std::string>{std::to_string(::getpid())});
  CHECK(status_words(child.pid(), "Uid:").size() == 4);
  CHECK(status_words(child.pid(), "NoSuchName:").empty());
  CHECK(status_words(-1, "PPid:").empty());
  CHECK(comm_of(-1).empty());
}

TEST_CASE("the holder of a lock is another process rather than this one", "[core][other_processes]") {
  const Known file(std::string(100, 'x'));
  const bool is_of_process = GENERATE(false, true);
  const LockOwner owner(file.path, 10, 10, F_RDLCK, is_of_process);
  const UniqueFd own(::open(file.path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = 0;
  lock.l_len = 50;
  REQUIRE(::fcntl(own.get(), F_OFD_SETLK, &lock) == 0);
  CHECK(find_lock_holder(identity_of(file), {15, 1}) == owner.pid());
  CHECK(find_lock_holder(identity_of(file), {30, 1}) == ::getpid());
  CHECK_FALSE(find_lock_holder(identity_of(file), {60, 1}));
  FileIdentity other = identity_of(file);
  other.inode += 1'000'000'000;
  CHECK_FALSE(find_lock_holder(other, {15, 1}));
}
