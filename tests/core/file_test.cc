// The operating system's files: reads and writes are complete, and errors have their reason.
#include "core/storage/file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using stfs::test::bytes_of;
using stfs::test::content_of;
using stfs::test::errno_of;
using stfs::test::TemporaryDirectory;

namespace {

Result<std::string> read_text(const File& file, std::uint64_t offset, std::size_t size_bytes) {
  std::string text(size_bytes, '?');
  if (auto read = file.read(std::as_writable_bytes(std::span(text)), offset); !read)
    return pass_on(std::move(read));
  return text;
}

}  // namespace

TEST_CASE("a file is read and written at offsets, whole or not at all", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "0123456789");
  const auto file = system_storage().open(path, Access::ReadWrite);
  REQUIRE(file);
  CHECK(read_text(**file, 3, 4) == "3456");
  CHECK(read_text(**file, 10, 0) == "");
  REQUIRE((*file)->write(bytes_of("xy"), 4));
  REQUIRE((*file)->write(bytes_of("end"), 12));
  REQUIRE((*file)->write({}, 1'000'000));
  REQUIRE((*file)->sync());
  CHECK(content_of(path) == std::string("0123xy6789\0\0end", 15));
}

TEST_CASE("an end of file before the buffer is full is ArchiveCut with EIO", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "0123456789");
  const auto file = system_storage().open(path, Access::ReadOnly);
  for (const auto& [offset, size] : {std::pair{8, 3}, {10, 1}, {1000, 1}}) {
    const auto read = read_text(**file, static_cast<std::uint64_t>(offset), static_cast<std::size_t>(size));
    REQUIRE_FALSE(read);
    CHECK(read.error().code == ErrorCode::ArchiveCut);
    CHECK(read.error().errno_value == EIO);
    CHECK(read.error().message.starts_with(path + ": the file ends at byte "));
  }
}

TEST_CASE("offsets that no file can have are refused, not wrapped", "[core][file]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", "0123456789"), Access::ReadWrite);
  for (const std::uint64_t offset : {std::uint64_t{1} << 63U, ~std::uint64_t{0}}) {
    CHECK(errno_of(read_text(**file, offset, 1)) == EINVAL);
    CHECK(errno_of((*file)->write(bytes_of("x"), offset)) == EFBIG);
  }
}

TEST_CASE("writing through a file opened for reading is an error", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "old");
  const auto file = system_storage().open(path, Access::ReadOnly);
  CHECK(errno_of((*file)->write(bytes_of("new"), 0)) == EBADF);
  CHECK(content_of(path) == "old");
}

TEST_CASE("a file takes no blocks from another file system, and a file opened for reading takes none",
          "[core][file]") {
  const TemporaryDirectory directory;
  const std::string bytes(8192, 'b');
  const auto source = system_storage().open(directory.write("source", bytes), Access::ReadOnly);
  const std::string path = directory.write("target", bytes);
  const auto target = system_storage().open(path, Access::ReadOnly);
  const auto refused = (*target)->clone_from(**source, 0, {0, 4096});
  CHECK(errno_of(refused) == EBADF);
  CHECK(refused.error().message.starts_with(path + ": clone blocks: "));
  CHECK(content_of(path) == bytes);

  const auto elsewhere = system_storage().create_unnamed("/dev/shm/stfs-test-clone");
  const auto store_of = [](const File& file) { return file.status().value().identity.device; };
  if (!elsewhere || store_of(**elsewhere) == store_of(**source))
    return test::note_skip("needs /dev/shm with a file system of its own");
  REQUIRE((*elsewhere)->write(bytes_of(bytes), 0));
  CHECK(errno_of((*elsewhere)->clone_from(**source, 0, {0, 4096})) == EOPNOTSUPP);
}

TEST_CASE("reserve grows the file to the range's end and keeps its bytes", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "old");
  const auto file = system_storage().open(path, Access::ReadWrite);
  REQUIRE((*file)->reserve({100, 0}));
  CHECK((*file)->status()->identity.size_bytes == 3);
  const auto reserved = (*file)->reserve({0, 5000});
  REQUIRE(reserved);
  const std::uint64_t size_bytes = (*file)->status()->identity.size_bytes;
  CHECK((size_bytes == 5000 || size_bytes == 3));  // 3: this file system can't reserve
  CHECK(content_of(path).substr(0, 3) == "old");
}

TEST_CASE("status is that of stat, and identity changes with the content", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "old");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  const auto file = system_storage().open(path, Access::ReadWrite);
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  const auto status = (*file)->status();
  REQUIRE(status);
  CHECK(status->identity.device == ((std::uint64_t{major(st.st_dev)} << 32U) | minor(st.st_dev)));
  CHECK(status->identity.inode == st.st_ino);
  CHECK(status->identity.size_bytes == 3);
  CHECK(status->identity.mtime_ns == st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec);
  CHECK(status->mode == st.st_mode);
  CHECK(status->uid == st.st_uid);
  CHECK(system_storage().status(path)->identity.same_file(status->identity));
  CHECK((*file)->size_bytes() == status->identity.size_bytes);
  REQUIRE((*file)->write(bytes_of("longer"), 0));
  CHECK((*file)->status()->identity != status->identity);
  CHECK((*file)->status()->identity.same_file(status->identity));
}

TEST_CASE("what is no regular file is refused by its kind, without waiting for it", "[core][file]") {
  const TemporaryDirectory directory;
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_directory(directory / "directory");
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  struct sockaddr_un address {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (directory / "socket").c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  for (const Access access : {Access::ReadOnly, Access::ReadWrite}) {
    for (const std::string& path :
         {directory / "pipe", directory / "directory", directory / "socket", std::string("/dev/null")}) {
      const auto file = system_storage().open(path, access);
      CAPTURE(path);
      REQUIRE_FALSE(file);
      const bool is_directory = path.ends_with("directory");
      CHECK(file.error().errno_value == (is_directory ? EISDIR : EINVAL));
      CHECK(file.error().message ==
            path + (is_directory ? ": is a directory, not an archive" : ": is not a regular file"));
    }
  }
}

TEST_CASE("a file that is not there is ENOENT with its path", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "absent";
  CHECK(system_storage().open(path, Access::ReadOnly).error().message ==
        path + ": open: No such file or directory");
  CHECK(errno_of(system_storage().status(path)) == ENOENT);
  CHECK(errno_of(system_storage().open(path + "/below", Access::ReadOnly)) == ENOENT);
}

TEST_CASE("an unnamed file can be used and leaves nothing in its directory", "[core][file]") {
  const TemporaryDirectory directory;
  {
    const auto file = system_storage().create_unnamed(directory / "fallback");
    REQUIRE(file);
    REQUIRE((*file)->write(bytes_of("staged"), 4096));
    CHECK(read_text(**file, 4096, 6) == "staged");
    CHECK(read_text(**file, 0, 2) == std::string(2, '\0'));
    CHECK(std::filesystem::is_empty(directory.path()));
    CHECK(((*file)->status()->mode & 0777) == 0600);
  }
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK(errno_of(system_storage().create_unnamed(directory / "absent/journal")) == ENOENT);
}

TEST_CASE("a look at a lock takes none, and works on a file opened for reading", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "0123456789");
  const auto owner = system_storage().open(path, Access::ReadWrite);
  const auto reader = system_storage().open(path, Access::ReadOnly);
  const auto other = system_storage().open(path, Access::ReadWrite);
  const ByteRange byte{0, 1};
  for (const LockKind kind : {LockKind::Shared, LockKind::Exclusive}) {
    CHECK_FALSE((*reader)->is_locked_by_other(byte, kind).value());
    CHECK_FALSE((*owner)->is_locked_by_other(byte, kind).value());
  }
  // A test for a lock is not visible to others.
  REQUIRE_FALSE((*owner)->try_lock(byte, LockKind::Exclusive).value());
  for (const LockKind kind : {LockKind::Shared, LockKind::Exclusive}) {
    CHECK((*reader)->is_locked_by_other(byte, kind).value());
    CHECK((*other)->is_locked_by_other(byte, kind).value());
    // A test for a lock does not find the caller's own lock.
    CHECK_FALSE((*owner)->is_locked_by_other(byte, kind).value());
    CHECK_FALSE((*reader)->is_locked_by_other({5, 1}, kind).value());
  }
  (*owner)->unlock(byte);
  REQUIRE_FALSE((*reader)->try_lock(byte, LockKind::Shared).value());
  CHECK_FALSE((*other)->is_locked_by_other(byte, LockKind::Shared).value());
  CHECK((*other)->is_locked_by_other(byte, LockKind::Exclusive).value());
}

TEST_CASE("mode, names and owner of a new file are what was asked for, whatever the umask", "[core][file]") {
  const TemporaryDirectory directory;
  const mode_t before = ::umask(0077);
  auto file = system_storage().create_unnamed(directory / "staged");
  REQUIRE(file);
  CHECK(((*file)->status().value().mode & 07777U) == 0600);
  REQUIRE((*file)->set_mode(0664));
  ::umask(before);
  CHECK(((*file)->status().value().mode & 07777U) == 0664);
  CHECK((*file)->status().value().links == ((*file)->has_staged_name() ? 1U : 0U));
  REQUIRE(system_storage().publish(**file, directory / "named"));
  std::filesystem::create_hard_link(directory / "named", directory / "second");
  CHECK(system_storage().status(directory / "named").value().links == 2);
  const FileStatus own = (*file)->status().value();
  CHECK((*file)->set_owner(own.uid, own.gid));
}

TEST_CASE("a boot has an id that stays", "[core][file]") {
  const Boot boot = system_storage().boot();
  CHECK(boot.is_known());
  CHECK(boot == system_storage().boot());
}

TEST_CASE("a lock is taken only on a file of one name and on a directory", "[core][file]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("file", "");
  const std::string link = directory / "link";
  const std::string dangling = directory / "dangling";
  const std::string linked_directory = directory / "linked_directory";
  const std::string pipe = directory / "pipe";
  REQUIRE(::symlink(file.c_str(), link.c_str()) == 0);
  REQUIRE(::symlink("nowhere", dangling.c_str()) == 0);
  REQUIRE(::symlink(".", linked_directory.c_str()) == 0);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const LockKind kind : {LockKind::Shared, LockKind::Exclusive}) {
    for (const std::string& path : {file, directory.path().string(), linked_directory + "/."}) {
      const auto lock = system_storage().try_flock(path, kind);
      CHECK((lock && *lock));
    }
    for (const auto& [path, why] : {std::pair(link, ELOOP),
                                    {dangling, ELOOP},
                                    {linked_directory, ELOOP},
                                    {pipe, EINVAL},
                                    {"/dev/null", EINVAL}}) {
      INFO(path);
      const auto lock = system_storage().try_flock(path, kind);
      CHECK(errno_of(lock) == why);
      CHECK(lock.error().message.starts_with(path + ": is "));
    }
  }
  const std::string name = directory / "second";
  REQUIRE(::link(file.c_str(), name.c_str()) == 0);
  CHECK(errno_of(system_storage().try_flock(name, LockKind::Exclusive)) == EMLINK);
  CHECK(errno_of(system_storage().try_flock(directory / "absent", LockKind::Shared)) == ENOENT);
}

TEST_CASE("the lock of flock(2) is for a directory, or for a file of one name", "[core][file]") {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.write("file", "");
  std::filesystem::create_symlink(file, directory / "link");
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  const auto locked = [&](const std::filesystem::path& path) {
    return errno_of(system_storage().try_flock(path, LockKind::Exclusive));
  };
  CHECK(locked(file) == 0);
  CHECK(locked(directory.path()) == 0);
  CHECK(locked(directory / "link") == ELOOP);
  CHECK(locked(directory / "pipe") == EINVAL);
  std::filesystem::create_hard_link(file, directory / "twin");
  CHECK(locked(file) == EMLINK);
}

TEST_CASE("a file whose bytes can't be synced replaces none", "[core][file]") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.write("index", "old");
  stfs::test::WatchedStorage storage;
  const auto content = storage.create_unnamed(directory / "unnamed").value();
  REQUIRE(content->write(bytes_of("new"), 0));
  storage.failing = {stfs::test::FileCall::Sync};
  CHECK(errno_of(storage.replace_with(*content, path, directory / "temporary", Durability::Power)) == EIO);
  CHECK(content_of(path) == "old");
}

TEST_CASE("bytes that can't be written replace no file, and the error is theirs", "[core][file]") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.write("index", "old");
  stfs::test::WatchedStorage storage;
  storage.failing = {stfs::test::FileCall::Write};
  storage.errno_value = ENOSPC;
  const std::string bytes(1 << 20, 'n');
  CHECK(errno_of(storage.replace(path, directory / "temporary", bytes_of(bytes), Durability::Power)) ==
        ENOSPC);
  CHECK(content_of(path) == "old");
}
