// Tests that a new file replaces an archive. tests/crash adds crashes.
#include "core/commit/archive_replacement.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/commit/transaction.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const std::string kBefore = archive_of({{"a", std::string(5000, 'a')}, {"b", std::string(100, 'b')}});
const std::string kAfter = archive_of({{"c", std::string(9000, 'c')}});

/// An archive that is open, and a file to replace it.
struct Replaced {
  [[nodiscard]] Result<JournalFile> begin() const {
    auto made = begin_replacement(*archive, kAfter.size());
    if (made) REQUIRE(made->file->write(bytes_of(kAfter), 0));
    return made;
  }
  /// @return the errno.
  int replace(const std::function<Result<void>()>& check = [] { return Result<void>(); }) {
    auto made = begin().value();
    CommitOptions options;
    options.lock_patience = {};
    return errno_of(replace_archive(*archive, made, options, check, is_replaced));
  }
  [[nodiscard]] std::string stored() const { return content_of(path); }
  [[nodiscard]] std::size_t files() const { return count_files(directory.path()); }

  TemporaryDirectory directory;
  std::filesystem::path path = directory.write("m.safetensors", kBefore);
  WatchedStorage storage;
  std::unique_ptr<Archive> archive = Archive::open(path, Access::ReadWrite, storage).value();
  bool is_replaced = false;
};

}  // namespace

TEST_CASE_METHOD(Replaced,
                 "a new file takes the archive's place, mode and all, and the old one is not written",
                 "[core][commit]") {
  REQUIRE(::chmod(path.c_str(), 0604) == 0);
  CHECK(replace() == 0);
  CHECK(is_replaced);
  CHECK(stored() == kAfter);
  CHECK(files() == 1);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0604);

  Transaction late(*archive);
  REQUIRE(late.stage(archive->version()->ids.of(0)).value()->write(bytes_of(std::string(5000, 'x')), 0));
  ReaderWriterLock lock;
  CHECK(errno_of(late.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; })) == ESTALE);
  CHECK(stored() == kAfter);
}

TEST_CASE_METHOD(Replaced, "the new file does not get rights that its directory gives to new files",
                 "[core][commit]") {
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  const struct {
    std::uint32_t version = 2;
    Entry entries[5] = {{0x01, 7, ~0U}, {0x02, 6, 4242}, {0x04, 5, ~0U}, {0x10, 7, ~0U}, {0x20, 5, ~0U}};
  } list;
  if (::setxattr(directory.path().c_str(), "system.posix_acl_default", &list, sizeof list, 0) != 0) return;
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  CHECK(replace() == 0);
  CHECK(::getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) < 0);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0640);
}

TEST_CASE("a directory that was exchanged for another one keeps its file", "[core][commit]") {
  namespace fs = std::filesystem;
  const TemporaryDirectory above;
  const fs::path path = above / "model/m.safetensors";
  const fs::path other = above / "private/m.safetensors";
  for (const fs::path& directory : {path.parent_path(), other.parent_path()}) fs::create_directory(directory);
  above.write("model/m.safetensors", kBefore);
  above.write("private/m.safetensors", kBefore);
  auto archive = Archive::open(path, Access::ReadWrite).value();
  auto made = begin_replacement(*archive, kAfter.size()).value();
  REQUIRE(made.file->write(bytes_of(kAfter), 0));
  bool is_replaced = false;
  const auto exchange = [&] {
    fs::rename(above / "model", above / "moved");
    fs::create_directory_symlink("private", above / "model");
    return Result<void>();
  };
  CHECK(errno_of(replace_archive(*archive, made, {}, exchange, is_replaced)) == ESTALE);
  CHECK_FALSE(is_replaced);
  CHECK(content_of(other) == kBefore);
  CHECK(content_of(above / "moved/m.safetensors") == kBefore);
  CHECK(count_files(other.parent_path()) == 1);
}

TEST_CASE_METHOD(Replaced, "without a replacement nothing stays of the new file", "[core][commit]") {
  {
    const auto made = begin();
    REQUIRE(made);
    CHECK(files() == 1);
  }
  CHECK(replace([] { return Result<void>(fail_system(ECANCELED, "the caller", "say no")); }) == ECANCELED);
  storage.failing = {FileCall::Sync};
  CHECK(replace() == EIO);
  storage.failing = {FileCall::Publish};
  CHECK(replace() == EIO);
  storage.failing = {FileCall::Rename};
  CHECK(replace() == EIO);
  CHECK_FALSE(is_replaced);
  CHECK(stored() == kBefore);
  CHECK(files() == 1);
}

TEST_CASE_METHOD(Replaced, "a directory that could not be synced has the new archive", "[core][commit]") {
  storage.failing = {FileCall::SyncDirectory};
  CHECK(replace() == EIO);
  CHECK(is_replaced);
  CHECK(stored() == kAfter);
}

TEST_CASE_METHOD(Replaced, "the name that a dead process leaves goes with the next opening",
                 "[core][commit]") {
  storage.failing = {FileCall::Rename, FileCall::Remove};
  CHECK(replace() == EIO);
  CHECK(files() == 2);
  archive.reset();
  storage.failing = {};
  CHECK(Archive::open(path, Access::ReadWrite, storage));
  CHECK(files() == 1);
  CHECK(stored() == kBefore);
}

TEST_CASE_METHOD(Replaced, "while another process commits, no file takes the archive's place",
                 "[core][commit]") {
  const auto other = system_storage().open(path, Access::ReadWrite).value();
  auto locks = ArchiveLocks::for_patch(*other, path, {{0, 1}}, std::chrono::milliseconds(0));
  REQUIRE(locks);
  CHECK(replace() == EBUSY);
  locks->release();
  CHECK(replace() == 0);
}

TEST_CASE_METHOD(Replaced, "an archive that was replaced meanwhile stays", "[core][commit]") {
  const std::string other = archive_of({{"other", "bytes"}});
  auto made = begin().value();
  std::filesystem::rename(directory.write("new", other), path);
  CHECK(errno_of(replace_archive(
            *archive, made, {}, [] { return Result<void>(); }, is_replaced)) == ESTALE);
  CHECK(stored() == other);
}

TEST_CASE_METHOD(Replaced,
                 "an archive with several names, or of an owner that can't be given, is not replaced",
                 "[core][commit]") {
  std::filesystem::create_hard_link(path, directory.path() / "other");
  CHECK(errno_of(begin()) == EMLINK);
  std::filesystem::remove(directory.path() / "other");
  CHECK(begin());
  if (::geteuid() != 0) return;
  REQUIRE(::chown(path.c_str(), 12345, 54321) == 0);
  CHECK(begin());
  storage.failing = {FileCall::SetOwner};
  storage.errno_value = EPERM;
  CHECK(errno_of(begin()) == EPERM);
  CHECK(files() == 1);
}
