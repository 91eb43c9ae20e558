// Journals of other boots, other users, other versions, of stores without birth times, and hostile ones.
#include "core/journal_verdict.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "core/archive.h"
#include "core/coordinator.h"
#include "core/journal_access.h"
#include "core/journal_file.h"
#include "core/transaction.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/planted_journal.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// The system's storage, with somebody who decides about each call, and in any boot.
class WatchedStorage final : private Interceptor, public InterceptedStorage {
 public:
  explicit WatchedStorage(std::function<Verdict(const SeamCall&)> decide = {},
                          Boot now = system_storage().boot())
      : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)),
        decide_(std::move(decide)),
        now_(now) {}
  [[nodiscard]] Boot boot() const override { return now_; }
  std::vector<FileCall> calls;

 private:
  Verdict before(const SeamCall& call) override {
    calls.push_back(call.kind);
    return decide_ ? decide_(call) : Verdict{};
  }
  std::function<Verdict(const SeamCall&)> decide_;
  const Boot now_;
};

Boot later_boot() {
  Boot boot = system_storage().boot();
  boot.id[0] ^= 1U;
  return boot;
}

/// Every host is another one, and runs since another moment. 0: one that does not know itself, as a container
/// that has no /etc/machine-id.
Boot boot_of_host(std::uint64_t host) {
  Boot boot = system_storage().boot();
  boot.id[0] ^= static_cast<std::uint8_t>(host + 1);
  boot.host = host;
  return boot;
}

/// One tensor over three blocks behind a header of exactly one.
struct Scene {
  Scene() {
    std::string header = R"({"t":{"dtype":"U8","shape":[12288],"data_offsets":[0,12288]}})";
    header.resize(kBlockBytes - 8, ' ');
    path = directory.write("m.safetensors", archive_bytes(header, std::string(3 * kBlockBytes, 'o')));
    before = content_of(path);
  }
  /// Two blocks of new bytes.
  std::filesystem::path plant(const std::function<void(ArchiveStamp&)>& change_stamp = {},
                              Storage& storage = system_storage()) const {
    return plant_journal(path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), change_stamp, storage);
  }
  void write(std::uint64_t offset, const std::string& bytes) const {
    std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream << bytes;
  }
  [[nodiscard]] std::string patched() const {
    return std::string(before).replace(kBlockBytes, 2 * kBlockBytes, std::string(2 * kBlockBytes, 'n'));
  }
  JournalReport recover_one(Storage& storage = system_storage(), const RecoveryOptions& options = {}) const {
    auto file = storage.open(path, Access::ReadWrite).value();
    auto reports = recover(storage, path, *file, options);
    if (!reports) throw std::runtime_error(reports.error().message);
    if (reports->size() != 1) throw std::runtime_error("one journal expected");
    return reports->front();
  }
  /// What a commit finds in its way.
  [[nodiscard]] Result<Obstacle> obstacle(Storage& storage = system_storage()) const {
    const auto file = storage.open(path, Access::ReadWrite).value();
    const ByteRange block{kBlockBytes, kBlockBytes};
    return find_obstacle(storage, path, *file, std::span(&block, 1));
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
};

void patch(const std::filesystem::path& file, std::uint64_t offset, std::string_view bytes) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream << bytes;
}

FileStatus status_of(std::uint32_t uid, std::uint32_t gid, std::uint32_t mode) {
  FileStatus status;
  status.uid = uid;
  status.gid = gid;
  status.mode = mode;
  return status;
}

}  // namespace

TEST_CASE("a journal is believed where its owner may write the archive", "[core][journal_access]") {
  constexpr std::uint32_t kUser = 1000;
  constexpr std::uint32_t kOther = 1001;
  constexpr std::uint32_t kGroup = 2000;
  const FileStatus closed = status_of(kUser, kGroup, 0100644);
  const FileStatus plain = status_of(0, 0, 040755);
  // Of root, of the archive's owner, of this process's user.
  CHECK(is_believed(status_of(0, 0, 0), closed, plain, 5));
  CHECK(is_believed(status_of(kUser, 7, 0), closed, plain, 5));
  CHECK(is_believed(status_of(5, 7, 0), closed, plain, 5));
  CHECK_FALSE(is_believed(status_of(kOther, 7, 0), closed, plain, 5));
  CHECK_FALSE(is_believed(status_of(kOther, kGroup, 0), closed, plain, 5));
  // Others may write the archive.
  CHECK(is_believed(status_of(kOther, 7, 0), status_of(kUser, kGroup, 0100666), plain, 5));
  // The group may.
  const FileStatus shared = status_of(kUser, kGroup, 0100664);
  CHECK(is_believed(status_of(kOther, kGroup, 0), shared, plain, 5));
  CHECK_FALSE(is_believed(status_of(kOther, 7, 0), shared, plain, 5));
  // Whether a directory has given the group can't be told where anybody may write to it.
  CHECK(is_believed(status_of(kOther, kGroup, 0), shared, status_of(0, kGroup, 042775), 5));
  CHECK_FALSE(is_believed(status_of(kOther, kGroup, 0), shared, status_of(0, kGroup, 042777), 5));
  CHECK(is_believed(status_of(kOther, kGroup, 0), shared, status_of(0, 3000, 042777), 5));
}

TEST_CASE("a new journal has the archive's mode, group and owner, whatever the umask",
          "[core][journal_access]") {
  const Scene scene;
  const bool is_root = ::geteuid() == 0;
  if (is_root) REQUIRE(::chown(scene.path.c_str(), 12345, 23456) == 0);
  for (const mode_t mode : {0600, 0640, 0660, 0664, 0666, 0444}) {
    REQUIRE(::chmod(scene.path.c_str(), mode) == 0);
    const mode_t umask_before = ::umask(0077);
    const auto made = create_journal_file(system_storage(), scene.path);
    ::umask(umask_before);
    REQUIRE(made);
    const FileStatus status = made->file->status().value();
    CHECK((status.mode & 07777U) == (mode | 0600U));
    if (is_root) CHECK(status.uid == 12345);
    if (is_root) CHECK(status.gid == 23456);
  }
}

TEST_CASE("where the group can't be given, it has no more than others", "[core][journal_access]") {
  const Scene scene;
  if (::geteuid() != 0) {
    test::note_skip("needs root, to give an archive a group that others are not in");
    return;
  }
  REQUIRE(::chown(scene.path.c_str(), 12345, 23456) == 0);
  REQUIRE(::chmod(scene.path.c_str(), 0664) == 0);
  WatchedStorage storage([](const SeamCall& call) {
    return call.kind == FileCall::SetOwner ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = EPERM}
                                           : Verdict{};
  });
  const auto made = create_journal_file(storage, scene.path);
  REQUIRE(made);
  CHECK((made->file->status().value().mode & 07777U) == 0644);
}

TEST_CASE("a journal that can't be read blocks commits, and its owner is named", "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  WatchedStorage storage([](const SeamCall& call) {
    const bool is_hit = call.kind == FileCall::Open && call.role == FileRole::Journal;
    return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = EACCES} : Verdict{};
  });
  const auto obstacle = scene.obstacle(storage);
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().message.find("run `stfs recover` as") != std::string::npos);
  CHECK(obstacle.error().message.find(journal.string()) != std::string::npos);
  const JournalReport report = scene.recover_one(storage);
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.blocks_commits);
  CHECK(std::filesystem::exists(journal));
  // A reader is told.
  const auto archive = Archive::open(scene.path, Access::ReadOnly, storage);
  REQUIRE(archive);
  REQUIRE((*archive)->recovered().size() == 1);
  CHECK((*archive)->recovered().front().blocks_commits);
}

TEST_CASE("a journal that may only be read shows its bytes, and is settled by those who may write it",
          "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  unsigned opens = 0;
  WatchedStorage storage([&opens](const SeamCall& call) {
    const bool is_hit = call.kind == FileCall::Open && call.role == FileRole::Journal && ++opens % 2 == 1;
    return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = EACCES} : Verdict{};
  });
  const auto writer = Archive::open(scene.path, Access::ReadWrite, storage);
  REQUIRE_FALSE(writer);
  CHECK(writer.error().errno_value == EACCES);
  CHECK(writer.error().message.find("run `stfs recover` as") != std::string::npos);
  const auto reader = Archive::open(scene.path, Access::ReadOnly, storage);
  REQUIRE(reader);
  CHECK_FALSE((*reader)->is_as_in_file());
  CHECK(content_of(scene.path) == scene.before);
}

TEST_CASE("a journal of a stranger blocks commits and is never applied", "[core][journal_scan]") {
  if (::geteuid() != 0) {
    test::note_skip("needs root, to give a journal to somebody else");
    return;
  }
  const Scene scene;
  const auto journal = scene.plant();
  REQUIRE(::chown(journal.c_str(), 12345, 12345) == 0);
  const JournalReport report = scene.recover_one();
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.blocks_commits);
  CHECK(report.next_step.find("user 12345") != std::string::npos);
  CHECK(content_of(scene.path) == scene.before);
  CHECK_FALSE(scene.obstacle());
  // The same user may write the archive.
  REQUIRE(::chmod(scene.path.c_str(), 0666) == 0);
  CHECK(scene.recover_one().action == JournalAction::Applied);
}

TEST_CASE("a look at journals takes no lock", "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  WatchedStorage storage;
  const auto file = storage.open(scene.path, Access::ReadOnly).value();
  const auto found = scan_journals(storage, scene.path, *file);
  REQUIRE(found);
  CHECK(found->front().report.state == JournalState::Committed);
  CHECK(std::ranges::count(storage.calls, FileCall::Lock) == 0);
  CHECK(std::ranges::count(storage.calls, FileCall::TestLock) == 1);
}

TEST_CASE("where a store has no locks a journal's owner counts as dead; other failures to ask are errors",
          "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  for (const int why : {ENOLCK, ENOSYS, EOPNOTSUPP, EIO}) {
    WatchedStorage storage([why](const SeamCall& call) {
      return call.kind == FileCall::TestLock ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = why}
                                             : Verdict{};
    });
    const auto file = storage.open(scene.path, Access::ReadOnly).value();
    const auto found = scan_journals(storage, scene.path, *file);
    CHECK(found.has_value() == (why != EIO));
    if (found) CHECK(found->front().report.state == JournalState::Committed);
  }
}

TEST_CASE("what a living owner has written is not hashed", "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  const auto owner = system_storage().open(journal, Access::ReadWrite).value();
  REQUIRE_FALSE(owner->try_lock(kOwnerByte, LockKind::Exclusive).value());
  patch(journal, kBlockBytes, "X");
  CHECK(scene.recover_one(system_storage(), {.is_dry_run = true}).state == JournalState::InUse);
  CHECK(scene.obstacle().value() == Obstacle::Recovery);
  // Under its lock it is judged once more: nobody applies what was never looked at.
  owner->unlock(kOwnerByte);
  CHECK(scene.recover_one().state == JournalState::Damaged);
  CHECK(content_of(scene.path) == scene.before);
}

TEST_CASE("a journal that vanishes at any step of a scan is gone", "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  for (const int why : {ENOENT, ESTALE}) {
    for (const FileCall kind :
         {FileCall::Open, FileCall::Read, FileCall::Status, FileCall::PathStatus, FileCall::TestLock}) {
      bool has_failed = false;
      WatchedStorage storage([&, kind, why](const SeamCall& call) {
        if (has_failed || call.kind != kind || call.role != FileRole::Journal) return Verdict{};
        has_failed = true;
        return Verdict{.kind = Verdict::Kind::Fail, .errno_value = why};
      });
      const auto file = storage.open(scene.path, Access::ReadOnly).value();
      const auto found = scan_journals(storage, scene.path, *file);
      REQUIRE(found);
      REQUIRE(has_failed);
      // It was looked for once more.
      CHECK(found->size() == 1);
      CHECK(std::ranges::count(storage.calls, FileCall::List) == 2);
    }
  }
  // What stays there and can't be read is no journal that has gone.
  WatchedStorage storage([](const SeamCall& call) {
    const bool is_hit = call.kind == FileCall::Read && call.role == FileRole::Journal;
    return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = ESTALE} : Verdict{};
  });
  const auto file = storage.open(scene.path, Access::ReadOnly).value();
  CHECK_FALSE(scan_journals(storage, scene.path, *file));
}

TEST_CASE("a reader is excused from looking only where the directory can't be listed",
          "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  for (const int why : {EACCES, EMFILE, EIO}) {
    WatchedStorage storage([why](const SeamCall& call) {
      return call.kind == FileCall::List ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = why}
                                         : Verdict{};
    });
    for (const Access access : {Access::ReadOnly, Access::ReadWrite}) {
      const auto archive = Archive::open(scene.path, access, storage);
      CHECK(archive.has_value() == (why == EACCES));
      if (!archive) CHECK(archive.error().errno_value == why);
    }
  }
  // Whoever can't open the journal is not excused, whatever the reason looks like.
  WatchedStorage storage([](const SeamCall& call) {
    const bool is_hit = call.kind == FileCall::Open && call.role == FileRole::Journal;
    return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = EMFILE} : Verdict{};
  });
  CHECK_FALSE(Archive::open(scene.path, Access::ReadOnly, storage));
}

TEST_CASE("what a lost boot has left empty is removed", "[core][recovery]") {
  const Scene scene;
  const bool is_standing = GENERATE(false, true);
  const std::size_t size = is_standing ? 0 : GENERATE(0, 100, 4096, 20000);
  const std::string name = journal_prefix("m.safetensors") + JournalId::random().text() +
                           std::string(is_standing ? kStandingSuffix : "");
  const std::string journal = scene.directory.write(name, std::string(size, '\0'));
  CHECK(scene.obstacle().value() == Obstacle::DeadOwner);
  CHECK(scene.recover_one().action == JournalAction::Removed);
  CHECK_FALSE(std::filesystem::exists(journal));
  CHECK(scene.obstacle().value() == Obstacle::None);
}

TEST_CASE("a commit of an earlier boot with durability=process finishes what it had begun, no more",
          "[core][recovery]") {
  const Scene scene;
  const auto journal = scene.plant();
  WatchedStorage later({}, later_boot());
  SECTION("the archive has only old blocks") {
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == scene.before);
  }
  SECTION("it has a block of each") {
    scene.write(kBlockBytes, std::string(kBlockBytes, 'n'));
    CHECK(scene.recover_one(later).action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("it has newer bytes") {
    scene.write(2 * kBlockBytes + 50, "newer");
    const std::string now = content_of(scene.path);
    CHECK(scene.obstacle(later).value() == Obstacle::DeadOwner);
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == now);
  }
  SECTION("its own bytes did not reach the disk") {
    patch(journal, 2 * kBlockBytes, "X");
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == scene.before);
  }
  SECTION("its record did not reach the disk") {
    patch(journal, std::filesystem::file_size(journal) - 8, std::string(8, '\0'));
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
  }
  SECTION("in the boot that made it, it counts whatever the archive has") {
    scene.write(2 * kBlockBytes + 50, "newer");
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
    return;
  }
  CHECK_FALSE(std::filesystem::exists(journal));
}

TEST_CASE("a commit that waits for a coordinator which was lost with its boot is lost with it",
          "[core][recovery][coordinator]") {
  const Scene scene;
  const std::string name = ".m.safetensors.stj." + std::string(32, '0') + ".group";
  const auto journal =
      plant_journal(scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), {}, system_storage(), name);
  const std::string whole = encode_coordinator({journal.filename().string()});
  const bool is_empty = GENERATE(true, false);
  const std::string coordinator =
      scene.directory.write(name, is_empty ? "" : whole.substr(0, whole.size() - 1));
  // In the boot that made it a damaged one is no loss of power.
  CHECK(scene.obstacle().has_value() == is_empty);
  WatchedStorage later({}, later_boot());
  CHECK(scene.obstacle(later).value() == (is_empty ? Obstacle::None : Obstacle::DeadOwner));
  const auto file = later.open(scene.path, Access::ReadWrite).value();
  REQUIRE(recover(later, scene.path, *file));
  CHECK_FALSE(std::filesystem::exists(journal));
  CHECK(std::filesystem::exists(coordinator) != is_empty);
  CHECK(content_of(scene.path) == scene.before);
  CHECK(scene.obstacle(later).value() == Obstacle::None);
}

TEST_CASE("a journal whose name may not be removed here is made void, and is in nobody's way",
          "[core][recovery]") {
  const Scene scene;
  const int why = GENERATE(EPERM, EACCES);
  const bool is_part = GENERATE(false, true);  // of a transaction that was never committed
  const bool is_lost = is_part || GENERATE(false, true);
  const std::string coordinator = is_part ? ".m.safetensors.stj." + std::string(32, '0') + ".group" : "";
  const auto journal = plant_journal(scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), {},
                                     system_storage(), coordinator);
  const auto refuse = [&](const SeamCall& call) {
    return call.kind == FileCall::Remove ? Verdict{Verdict::Kind::Fail, why} : Verdict{};
  };
  WatchedStorage sticky(refuse, is_lost && !is_part ? later_boot() : system_storage().boot());
  const JournalReport report = scene.recover_one(sticky);
  CHECK(report.action == (is_lost ? JournalAction::None : JournalAction::Applied));
  CHECK(report.is_left_void);
  CHECK(report.settlers == settlers_of(status_of(::geteuid(), 0, 0)));
  CHECK(content_of(scene.path) == (is_lost ? scene.before : scene.patched()));
  CHECK(content_of(journal.string()).substr(0, kBlockBytes) == std::string(kBlockBytes, '\0'));
  // Whoever has not made it void himself does not rely on what it looks like.
  CHECK(scene.obstacle(sticky).value() == Obstacle::DeadOwner);
  const auto file = sticky.open(scene.path, Access::ReadWrite).value();
  const ByteRange block{kBlockBytes, kBlockBytes};
  CHECK(find_obstacle(sticky, scene.path, *file, std::span(&block, 1), {}, std::span(&journal, 1)).value() ==
        Obstacle::None);
  const JournalReport again = scene.recover_one(sticky);
  CHECK(again.state == JournalState::Unfinished);
  CHECK(again.is_left_void);
  CHECK(scene.recover_one().action == JournalAction::Removed);
  CHECK_FALSE(std::filesystem::exists(journal));
}

TEST_CASE("commits go on beside journals that may not be removed here", "[core][recovery][transaction]") {
  const Scene scene;
  const auto first = scene.plant();
  int refused = 1;  // of what is removed next; a commit removes its own journal
  WatchedStorage sticky([&](const SeamCall& call) {
    const bool is_refused = call.kind == FileCall::Remove && refused-- > 0;
    return is_refused ? Verdict{Verdict::Kind::Fail, EPERM} : Verdict{};
  });
  const auto archive = Archive::open(scene.path, Access::ReadWrite, sticky).value();
  CHECK(archive->recovered().at(0).is_left_void);
  const auto commit = [&](char fill) {
    Transaction transaction(*archive);
    const std::string bytes(3 * kBlockBytes, fill);
    ReaderWriterLock lock;
    REQUIRE(transaction.stage(0).value()->write(std::as_bytes(std::span(bytes)), 0));
    REQUIRE(transaction.commit({}, [&](std::uint32_t) -> ReaderWriterLock& { return lock; }));
    CHECK(content_of(scene.path).substr(kBlockBytes) == bytes);
  };
  commit('a');
  const auto second = scene.plant();
  refused = 2;
  commit('b');
  commit('c');
  CHECK(std::filesystem::exists(first));
  CHECK(std::filesystem::exists(second));
}

TEST_CASE("another host's commit with durability=process is no lost one", "[core][recovery]") {
  const Scene scene;
  WatchedStorage here({}, boot_of_host(1));
  const auto journal = scene.plant({}, here);
  WatchedStorage elsewhere({}, boot_of_host(2));
  SECTION("where that may be this host, it is lost") {
    WatchedStorage unknown({}, boot_of_host(0));
    CHECK(scene.recover_one(unknown).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == scene.before);
  }
  SECTION("its blocks are known") {
    CHECK(scene.recover_one(elsewhere).action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("they are not") {
    scene.write(2 * kBlockBytes + 50, "newer");
    const JournalReport report = scene.recover_one(elsewhere);
    CHECK(report.state == JournalState::Foreign);
    CHECK(report.blocks_commits);
    CHECK_FALSE(scene.obstacle(elsewhere));
    CHECK(std::filesystem::exists(journal));
  }
}

TEST_CASE("without birth times the archive's blocks tell whose journal it is, and never the device",
          "[core][recovery]") {
  const Scene scene;
  SECTION("each block is old or new, on another host") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) {
      stamp.birth_ns = 0;
      stamp.device += 5;
      stamp.inode += 5;
    });
    scene.write(kBlockBytes, std::string(kBlockBytes, 'n'));
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("a block is neither") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) { stamp.birth_ns = 0; });
    scene.write(2 * kBlockBytes, std::string(kBlockBytes, 'x'));
    const std::string now = content_of(scene.path);
    const JournalReport report = scene.recover_one();
    CHECK(report.state == JournalState::Foreign);
    CHECK(report.blocks_commits);
    CHECK_FALSE(report.next_step.empty());
    CHECK_FALSE(scene.obstacle());
    CHECK(content_of(scene.path) == now);
    CHECK(std::filesystem::exists(journal));
  }
  SECTION("a loss of power has torn a block at a sector") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) { stamp.birth_ns = 0; });
    scene.write(2 * kBlockBytes, std::string(512, 'n') + std::string(512, 'x'));
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("the same bytes in another inode are no torn block") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) {
      stamp.birth_ns = 0;
      stamp.inode += 5;
    });
    scene.write(2 * kBlockBytes, std::string(512, 'n') + std::string(512, 'x'));
    CHECK(scene.recover_one().blocks_commits);
  }
  SECTION("another size is another archive") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) {
      stamp.birth_ns = 0;
      stamp.size_bytes += kBlockBytes;
    });
    const JournalReport report = scene.recover_one();
    CHECK(report.state == JournalState::Foreign);
    CHECK_FALSE(report.blocks_commits);
  }
}

TEST_CASE("a record is no longer than the archive's blocks can need", "[core][journal_scan]") {
  const Scene scene;
  const std::string journal =
      scene.directory.write(journal_prefix("m.safetensors") + JournalId::random().text(), "");
  // As much as the file system lets a sparse file have.
  std::uint64_t size_bytes = std::uint64_t{1} << 62U;
  while (::truncate(journal.c_str(), static_cast<off_t>(size_bytes)) != 0) size_bytes /= 2;
  REQUIRE(size_bytes >= std::uint64_t{1} << 33U);
  const JournalHead head{
      .id = {}, .record = {kBlockBytes, size_bytes - kBlockBytes}, .record_hash = 1, .boot = {}};
  patch(journal, 0, encode_head(head));
  WatchedStorage storage;
  const JournalReport report = scene.recover_one(storage);
  CHECK(report.state == JournalState::Damaged);
  CHECK(report.blocks_commits);
  CHECK(std::ranges::count(storage.calls, FileCall::Read) < 10);
}

TEST_CASE("beside a journal of a newer version nothing is written, and readers are told",
          "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  patch(journal, 8, std::string_view("\4\0\0\0", 4));
  const JournalReport report = scene.recover_one(system_storage(), {.is_dry_run = false, .is_forced = true});
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.explanation.find("use the version that wrote it") != std::string::npos);
  CHECK(report.next_step.find("deleting it loses what it has committed") != std::string::npos);
  CHECK(std::filesystem::exists(journal));
  const auto obstacle = scene.obstacle();
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().message.find("use the version that wrote it") != std::string::npos);
  const auto archive = Archive::open(scene.path, Access::ReadOnly);
  REQUIRE(archive);
  REQUIRE((*archive)->recovered().size() == 1);
}

TEST_CASE("a journal of the previous version is still applied", "[core][journal_scan]") {
  const Scene scene;
  const auto journal = scene.plant();
  // Its head has no boot: the hash comes where that would be.
  std::string block = content_of(journal).substr(0, 52);
  block[8] = 2;
  const std::uint64_t hash = XXH3_64bits(block.data(), block.size());
  for (unsigned byte = 0; byte < 8; ++byte) block += static_cast<char>(hash >> (8 * byte));
  block.resize(kBlockBytes, '\0');
  patch(journal, 0, block);
  WatchedStorage later({}, later_boot());
  CHECK(scene.recover_one(later).action == JournalAction::Applied);
  CHECK(content_of(scene.path) == scene.patched());
}

TEST_CASE("an archive with two hard links is not written", "[core][transaction]") {
  const Scene scene;
  const auto archive = Archive::open(scene.path, Access::ReadWrite).value();
  ReaderWriterLock readers;
  const auto commit = [&] {
    Transaction transaction(*archive);
    const std::string bytes = "abc";
    const auto stage = transaction.stage(0).value();
    REQUIRE(stage->write(std::as_bytes(std::span(bytes)), 5));
    return transaction.commit({}, [&](std::uint32_t) -> ReaderWriterLock& { return readers; });
  };
  REQUIRE(commit());
  const std::string after = content_of(scene.path);
  std::filesystem::create_hard_link(scene.path, scene.directory / "second.safetensors");
  const auto refused = commit();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EMLINK);
  CHECK(content_of(scene.path) == after);
  std::filesystem::remove(scene.directory / "second.safetensors");
  CHECK(commit());
}
