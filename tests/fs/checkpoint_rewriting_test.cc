// If most bytes of a checkpoint differ, a new file replaces the archive.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/commit/edit_space.h"
#include "core/commit/transaction.h"
#include "tests/fs/saved_checkpoint.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;
using namespace stfs::test::checkpoints;

TEST_CASE("a checkpoint of which all bytes differ becomes a new file, in about one write",
          "[fs][checkpoint]") {
  std::uint64_t written_bytes = 0;
  WatchedStorage storage([&](const SeamCall& call) {
    if (call.kind == FileCall::Write) written_bytes += call.size_bytes;
    return Verdict{};
  });
  const Mount mount(storage);
  const std::uint64_t file = inode_of(mount.path());
  const std::string before = mount.stored();
  std::ifstream reader(mount.path(), std::ios::binary);
  const Ino old = mount.ino({"w3"});
  const std::string bytes = archive_of(kAfter, R"({"step":"1"})");

  CHECK(save(mount, bytes) == 0);
  std::uint64_t header_bytes = 0;
  std::ifstream(mount.path(), std::ios::binary).read(reinterpret_cast<char*>(&header_bytes), 8);
  CHECK(header_bytes > kHeaderRoomBytes);  // for later edits
  CHECK(written_bytes < bytes.size() + bytes.size() / 4 + kHeaderRoomBytes);
  CHECK(mount.stores(bytes));
  CHECK(inode_of(mount.path()) != file);
  CHECK(mount.files() == 1);
  CHECK(mount.shows(kAfter));
  const Ino whole = mount.ino({".safetensors", "archive.safetensors"});
  CHECK(mount.read(whole).value().ends_with(kAfter.back().second));
  for (const auto& [name, content] : kBefore) CHECK(std::ranges::count(mount.forgotten(), name) == 1);
  CHECK(std::ranges::count(mount.forgotten(), ".safetensors") == 0);
  // A program that opened the old archive continues to read it.
  CHECK(mount.reads(old, kBefore[3].second));
  const bool has_old_bytes = std::string(std::istreambuf_iterator<char>(reader), {}) == before;
  CHECK(has_old_bytes);

  const std::string again = archive_of(kBefore);
  CHECK(save(mount, again) == 0);
  CHECK(mount.stores(again));
  CHECK(mount.shows(kBefore));
}

TEST_CASE("a checkpoint of other shapes and names becomes a new file as it is, without fillers",
          "[fs][checkpoint]") {
  const Mount mount;
  Tensors wanted(kBefore.begin(), kBefore.begin() + 3);
  for (std::size_t at = 0; at < 7; ++at)
    wanted.emplace_back(fmt::format("new{}", at), std::string(30'000, 'n'));
  wanted.emplace_back("w9", std::string(50'001, 'q'));
  const std::string bytes = archive_of(wanted);
  CHECK(save(mount, bytes) == 0);
  CHECK(mount.stores(bytes));
  CHECK(mount.shows(wanted));
  CHECK(errno_of(mount->lookup(kRootIno, "w5")) == ENOENT);
  CHECK(mount.files() == 1);
}

TEST_CASE("a checkpoint is rewritten when that is cheaper after what has come", "[fs][checkpoint]") {
  const auto is_rewritten = [](const Tensors& wanted) {
    const Mount mount;
    const std::uint64_t file = inode_of(mount.path());
    const std::string bytes = archive_of(wanted);
    CHECK(save(mount, bytes) == 0);
    CHECK(mount.stores(bytes));
    CHECK(mount.shows(wanted));
    CHECK(mount.files() == 1);
    return inode_of(mount.path()) != file;
  };
  CHECK(is_rewritten(mixed(kAfter, 5, kBefore)));        // the first half differs
  CHECK(is_rewritten(mixed(kBefore, 1, kAfter)));        // all but the first tenth
  CHECK_FALSE(is_rewritten(mixed(kAfter, 1, kBefore)));  // a tenth, as an output head
  CHECK_FALSE(is_rewritten(mixed(kBefore, 6, kAfter)));  // the last part
  CHECK_FALSE(is_rewritten(kBefore));
}

TEST_CASE("a checkpoint under a temporary name takes the archive's place when it is renamed",
          "[fs][checkpoint]") {
  const Mount mount;
  const std::uint64_t file = inode_of(mount.path());
  const Ino views = mount.ino({".safetensors"});
  Saver saver(mount, ".tmpAbc");
  CHECK(saver.write(archive_of(kAfter)) == 0);
  CHECK(mount.stores(archive_of(kBefore)));
  CHECK(mount.files() == 1);
  const auto renamed = mount->rename(views, ".tmpAbc", views, "archive.safetensors");
  REQUIRE(renamed);
  // The caller waits until the kernel has dropped these entries.
  CHECK(std::ranges::count(renamed->entries, std::pair(kRootIno, std::string("w0"))) == 1);
  CHECK(mount.shows(kAfter));
  CHECK(saver.close() == 0);
  CHECK(inode_of(mount.path()) != file);
  CHECK(mount.shows(kAfter));
}

TEST_CASE("the new file has the archive's mode, owner and attributes", "[fs][checkpoint]") {
  const Mount mount;
  REQUIRE(::chmod(mount.path().c_str(), 0640) == 0);
  const bool is_root = ::geteuid() == 0;
  if (is_root) REQUIRE(::chown(mount.path().c_str(), 12345, 54321) == 0);
  const bool has_attributes = ::setxattr(mount.path().c_str(), "user.note", "kept", 4, 0) == 0;
  const std::uint64_t file = inode_of(mount.path());
  CHECK(save(mount, archive_of(kAfter)) == 0);
  struct stat status {};
  REQUIRE(::stat(mount.path().c_str(), &status) == 0);
  CHECK(status.st_ino != file);
  CHECK((status.st_mode & 07777) == 0640);
  if (is_root) CHECK(status.st_uid == 12345);
  if (is_root) CHECK(status.st_gid == 54321);
  std::string note(4, ' ');
  if (has_attributes) CHECK(::getxattr(mount.path().c_str(), "user.note", note.data(), 4) == 4);
  if (has_attributes) CHECK(note == "kept");
}

TEST_CASE("a checkpoint behind a symbolic link replaces the file that the link names", "[fs][checkpoint]") {
  const Mount mount(system_storage(), "blob");
  CHECK(save(mount, archive_of(kAfter)) == 0);
  CHECK(std::filesystem::read_symlink(mount.path()) == "blob");
  CHECK(mount.stores(archive_of(kAfter)));
}

TEST_CASE("without space for a new file a checkpoint is saved in place", "[fs][checkpoint]") {
  WatchedStorage storage([](const SeamCall& call) {
    const bool is_whole = call.kind == FileCall::Reserve && call.size_bytes > kTensors * kTensorBytes;
    return is_whole ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = ENOSPC} : Verdict{};
  });
  const Mount mount(storage);
  const CapturedStderr captured;
  const std::uint64_t file = inode_of(mount.path());
  CHECK(save(mount, archive_of(kAfter)) == 0);
  CHECK(inode_of(mount.path()) == file);
  CHECK(mount.shows(kAfter));
  CHECK(contains(captured.text(), "is saved in place: "));
  CHECK(contains(captured.text(), "No space left on device"));
}

TEST_CASE("a checkpoint whose file may not take the archive's name is saved in place", "[fs][checkpoint]") {
  const int why = GENERATE(EBUSY, EPERM, EXDEV);
  WatchedStorage storage(fails(FileCall::Rename, why));
  const Mount mount(storage);
  const CapturedStderr captured;
  const std::uint64_t file = inode_of(mount.path());
  CHECK(save(mount, archive_of(kAfter)) == 0);
  CHECK(inode_of(mount.path()) == file);
  CHECK(mount.shows(kAfter));
  CHECK(mount.files() == 1);
  CHECK(contains(captured.text(), "is saved in place: "));
}

TEST_CASE("a checkpoint beside a transaction or an open tensor is saved in place", "[fs][checkpoint]") {
  const Mount mount;
  const std::uint64_t file = inode_of(mount.path());
  const Ino transactions = mount.ino({".safetensors", "transactions"});
  REQUIRE(mount->model_of(transactions)->make_directory(transactions, "t"));
  CHECK(save(mount, archive_of(kAfter)) == 0);
  CHECK(inode_of(mount.path()) == file);
  CHECK(mount.shows(kAfter));
  REQUIRE(mount->model_of(transactions)->remove_directory(transactions, "t"));

  const Ino tensor = mount.ino({"w0"});
  OpenFile* const open = mount->model_of(tensor)->open(tensor, O_RDWR, ::getpid()).value();
  CHECK(save(mount, archive_of(kBefore)) == 0);
  CHECK(inode_of(mount.path()) == file);
  mount->model_of(tensor)->release(open);
  CHECK(save(mount, archive_of(kAfter)) == 0);
  CHECK(inode_of(mount.path()) != file);
}

TEST_CASE("a transaction that begins while the archive is rewritten is kept", "[fs][checkpoint]") {
  const Mount mount;
  const std::uint64_t file = inode_of(mount.path());
  Saver saver(mount);
  REQUIRE(saver.write(archive_of(kAfter)) == 0);
  const Ino transactions = mount.ino({".safetensors", "transactions"});
  const Ino committed = mount.ino({".safetensors", "committed"});
  REQUIRE(mount->model_of(transactions)->make_directory(transactions, "t"));
  CHECK(saver.close() == 0);
  CHECK(inode_of(mount.path()) == file);
  CHECK(mount.shows(kAfter));
  CHECK(mount->rename(transactions, "t", committed, "t"));
}

TEST_CASE("a tensor that changes while the archive is rewritten refuses the checkpoint", "[fs][checkpoint]") {
  const Mount mount;
  const std::uint64_t file = inode_of(mount.path());
  const std::string changed(kTensorBytes, 'x');
  Saver saver(mount);
  REQUIRE(saver.write(archive_of(kAfter)) == 0);
  SECTION("by a program in this mount") {
    REQUIRE(mount.write("w9", changed) == 0);
  }
  SECTION("by another process") {
    const auto archive = Archive::open(mount.path(), Access::ReadWrite).value();
    Transaction transaction(*archive);
    REQUIRE(transaction.stage(archive->version()->ids.of(9)).value()->write(bytes_of(changed), 0));
    ReaderWriterLock lock;
    REQUIRE(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
  }
  CHECK(saver.close() == ESTALE);
  CHECK(inode_of(mount.path()) == file);
  CHECK(mount.reads(mount.ino({"w9"}), changed));
  CHECK(mount.reads(mount.ino({"w0"}), kBefore[0].second));
}

TEST_CASE("an archive that another program has replaced refuses the checkpoint", "[fs][checkpoint]") {
  const Mount mount;
  Saver saver(mount);
  REQUIRE(saver.write(archive_of(kAfter)) == 0);
  const std::string other = archive_of(mixed(kBefore, 5, kAfter));
  std::filesystem::rename(mount.directory().write("new", other), mount.path());
  CHECK(saver.close() == ESTALE);
  CHECK(mount.stores(other));
}

TEST_CASE("a write to the old archive that is pending fails, and nothing of it arrives", "[fs][checkpoint]") {
  const Mount mount;
  const Ino old = mount.ino({"w1"});
  const MountRoot::Pin edition = mount->model_of(old);
  REQUIRE(save(mount, archive_of(kAfter)) == 0);
  OpenFile* const file = edition->open(old, O_WRONLY, ::getpid()).value();
  CHECK(edition->write(*file, bytes_of(std::string(kTensorBytes, 'x')), 0, Caller(2, ::getpid())));
  CHECK(errno_of(edition->flush(*file, 2, ::getpid())) == ESTALE);
  edition->release(file);
  CHECK(mount.shows(kAfter));
  CHECK(mount.stores(archive_of(kAfter)));
  CHECK(mount.files() == 1);
}

TEST_CASE("the check for changes finds the new archive shown already, and watches it", "[fs][checkpoint]") {
  const Mount mount;
  REQUIRE(save(mount, archive_of(kAfter)) == 0);
  const auto change = mount->check_for_change(mount->watched_files().front());
  CHECK(change.is_reopened);
  CHECK(change.has_leftovers);
  CHECK_FALSE(mount->check_for_change(mount->watched_files().front()).is_reopened);
  CHECK(mount.shows(kAfter));
}

TEST_CASE("a check for changes leaves an archive alone that a save is about to show", "[fs][checkpoint]") {
  Mount mount;
  int opened = 0;
  mount.at_open = [&] {
    if (++opened > 1) return;
    for (const auto& file : mount->watched_files()) {
      const auto change = mount->check_for_change(file);
      CHECK(change.is_due_soon);
      CHECK_FALSE(change.is_reopened);
    }
  };
  REQUIRE(save(mount, archive_of(kAfter)) == 0);
  CHECK(opened == 1);
  CHECK(mount.shows(kAfter));
  CHECK_FALSE(mount->check_for_change(mount->watched_files().front()).is_due_soon);
}

TEST_CASE("whatever call of a rewriting save fails, the archive is the old one or the new one, whole",
          "[fs][checkpoint][fault]") {
  const int errno_value = GENERATE(EIO, ENOSPC);
  const std::string before = archive_of(kBefore);
  const std::string after = archive_of(kAfter);
  unsigned failures = 0;
  unsigned replaced = 0;
  for (unsigned nth = 1;; ++nth) {
    const CapturedStderr captured;
    FaultyStorage storage;
    std::optional<Mount> mount(std::in_place, storage);
    const std::uint64_t file = inode_of(mount->path());
    storage.plan().fail_call(nth, errno_value);
    const int verdict = save(*mount, after);
    const auto failed = storage.plan().failed();
    storage.plan().fail_call(0, 0);
    CAPTURE(nth, verdict, failed ? name_of(*failed) : "");
    if (failed) ++failures;
    if (inode_of(mount->path()) != file) ++replaced;
    const bool is_new = inode_of(mount->path()) != file || verdict == 0;
    CHECK(mount->stores(is_new ? after : before));
    if (!failed) CHECK(verdict == 0);
    // After a power loss, a directory that was not synced may still have the old archive.
    if (is_new && verdict != 0) CHECK(failed == FileCall::SyncDirectory);
    CHECK(Archive::open(mount->path(), Access::ReadWrite));
    CHECK(mount->files() == 1);
    if (!failed) break;
  }
  CHECK(failures > 10);
  CHECK(replaced > 5);
}

TEST_CASE("a program whose working directory is `.safetensors` saves again and again", "[fs][checkpoint]") {
  const Mount mount;
  const Ino views = mount.ino({".safetensors"});
  const auto save_there = [&](const Tensors& tensors, std::string_view name) {
    const MountRoot::Pin model = mount->model_of(views);
    const auto made = model->create(views, name, O_WRONLY, ::getpid());
    REQUIRE(made);
    CHECK(model->write(*made->file, bytes_of(archive_of(tensors)), 0, Caller(1, ::getpid())));
    CHECK(mount->rename(views, name, views, "archive.safetensors"));
    CHECK(model->flush(*made->file, 1, ::getpid()));
    model->release(made->file);
    CHECK(mount.shows(tensors));
    CHECK(mount.stores(archive_of(tensors)));
  };
  save_there(kAfter, ".tmp1");
  save_there(kBefore, ".tmp2");
  CHECK(mount.ino({".safetensors"}) == views);
}
