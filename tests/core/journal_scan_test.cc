// Tests what a scan of an archive's journals finds, and that it changes nothing.
#include "core/journal/journal_scan.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>

#include "core/archive/archive.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_verdict.h"
#include "core/journal/recovery.h"
#include "tests/core/planted_scene.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE_METHOD(Planted, "a journal that can't be read blocks commits, and its owner is named",
                 "[core][journal_scan]") {
  WatchedStorage storage(fails(FileCall::Open, EACCES, FileRole::Journal));
  const auto obstacle = scene.obstacle(storage);
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().message.find("`stfs recover`") != std::string::npos);
  CHECK(obstacle.error().message.find(journal.string()) != std::string::npos);
  const JournalReport report = scene.recover_one(storage);
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.blocks_commits);
  CHECK(std::filesystem::exists(journal));
  // The reader gets a report.
  const auto archive = Archive::open(scene.path, Access::ReadOnly, storage);
  REQUIRE(archive);
  REQUIRE((*archive)->recovered().size() == 1);
  CHECK((*archive)->recovered().front().blocks_commits);
}

TEST_CASE_METHOD(Planted,
                 "a journal that may only be read shows its bytes, and is settled by those who may write it",
                 "[core][journal_scan]") {
  unsigned opens = 0;
  WatchedStorage storage([&opens](const SeamCall& call) {
    const bool is_hit = call.kind == FileCall::Open && call.role == FileRole::Journal && ++opens % 2 == 1;
    return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = EACCES} : Verdict{};
  });
  const auto writer = Archive::open(scene.path, Access::ReadWrite, storage);
  REQUIRE_FALSE(writer);
  CHECK(writer.error().errno_value == EACCES);
  CHECK(writer.error().message.find("`stfs recover`") != std::string::npos);
  const auto reader = Archive::open(scene.path, Access::ReadOnly, storage);
  REQUIRE(reader);
  CHECK_FALSE((*reader)->is_as_in_file());
  CHECK(content_of(scene.path) == scene.before);
}

TEST_CASE("a journal of a stranger is not opened, and blocks commits only if the group may write the archive",
          "[core][journal_scan]") {
  if (::geteuid() != 0) {
    test::note_skip("needs root, to give a journal to somebody else");
    return;
  }
  const uid_t owner_of_archive = GENERATE(0U, 23456U);
  const Scene scene;
  const auto journal = scene.plant();
  REQUIRE(::chown(journal.c_str(), 12345, 12345) == 0);
  REQUIRE(::chown(scene.path.c_str(), owner_of_archive, owner_of_archive) == 0);
  for (const bool may_group_write : {false, true}) {
    REQUIRE(::chmod(scene.path.c_str(), may_group_write ? 0664 : 0644) == 0);
    WatchedStorage storage(fails(FileCall::Open, EIO, FileRole::Journal));
    const JournalReport report = scene.recover_one(storage);
    CHECK(report.state == JournalState::Unknown);
    CHECK(report.blocks_commits == may_group_write);
    CHECK(report.is_ignored == !may_group_write);
    CHECK_FALSE(report.explanation.empty());
    CHECK(report.next_step.find("user 12345") != std::string::npos);
    // The test runs as root, and root's rights do not help.
    CHECK(report.next_step.find("root") == std::string::npos);
    CHECK(report.path == journal);
    CHECK(scene.is_untouched());
    CHECK(std::filesystem::exists(journal));
    CHECK(scene.obstacle(storage).has_value() == !may_group_write);
    // A reader opens the archive and gets a report.
    const auto archive = Archive::open(scene.path, Access::ReadOnly, storage);
    REQUIRE(archive);
    REQUIRE((*archive)->recovered().size() == 1);
  }
  // After this change the same user may write the archive.
  REQUIRE(::chmod(scene.path.c_str(), 0666) == 0);
  CHECK(scene.recover_one().action == JournalAction::Applied);
}

TEST_CASE("a file that is too short for a commit blocks nobody, whoever its owner is",
          "[core][journal_scan]") {
  if (::geteuid() != 0) {
    test::note_skip("needs root, to give a journal to somebody else");
    return;
  }
  const Scene scene;
  REQUIRE(::chmod(scene.path.c_str(), 0664) == 0);
  const auto journal = scene.plant();
  REQUIRE(::chown(journal.c_str(), 12345, 12345) == 0);  // no user of this host, so its groups are not known
  CHECK(scene.recover_one().blocks_commits);
  for (const std::uint64_t size_bytes : {kBlockBytes, std::uint64_t{1}, std::uint64_t{0}}) {
    CAPTURE(size_bytes);
    std::filesystem::resize_file(journal, size_bytes);
    const JournalReport report = scene.recover_one();
    CHECK_FALSE(report.blocks_commits);
    CHECK(report.is_ignored);
    CHECK(report.explanation.find("too short") != std::string::npos);
    CHECK(std::filesystem::exists(journal));
    CHECK(scene.obstacle(system_storage()).has_value());
  }
}

TEST_CASE_METHOD(Planted, "a look at journals takes no lock", "[core][journal_scan]") {
  WatchedStorage storage;
  const auto file = storage.open(scene.path, Access::ReadOnly).value();
  const auto found = scan_journals(storage, scene.path, *file);
  REQUIRE(found);
  CHECK(found->front().report.state == JournalState::Committed);
  CHECK(std::ranges::count(storage.calls, FileCall::Lock) == 0);
  CHECK(std::ranges::count(storage.calls, FileCall::TestLock) == 1);
}

TEST_CASE_METHOD(
    Planted, "where a store has no locks a journal's owner counts as dead; other failures to ask are errors",
    "[core][journal_scan]") {
  for (const int why : {ENOLCK, ENOSYS, EOPNOTSUPP, EIO}) {
    WatchedStorage storage(fails(FileCall::TestLock, why));
    const auto file = storage.open(scene.path, Access::ReadOnly).value();
    const auto found = scan_journals(storage, scene.path, *file);
    CHECK(found.has_value() == (why != EIO));
    if (found) CHECK(found->front().report.state == JournalState::Committed);
  }
}

TEST_CASE_METHOD(Planted, "what a living owner has written is not hashed", "[core][journal_scan]") {
  const auto owner = system_storage().open(journal, Access::ReadWrite).value();
  REQUIRE_FALSE(owner->try_lock(kOwnerByte, LockKind::Exclusive).value());
  overwrite(journal, kBlockBytes, "X");
  CHECK(scene.recover_one(system_storage(), {.is_dry_run = true}).state == JournalState::InUse);
  CHECK(scene.obstacle().value() == Obstacle::Recovery);
  // Recovery judges the journal again under its lock, and never applies a journal that was not judged.
  owner->unlock(kOwnerByte);
  CHECK(scene.recover_one().state == JournalState::Damaged);
  CHECK(content_of(scene.path) == scene.before);
}

TEST_CASE_METHOD(Planted, "a journal that vanishes at any step of a scan is gone", "[core][journal_scan]") {
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
      // The scan lists the directory again.
      CHECK(found->size() == 1);
      CHECK(std::ranges::count(storage.calls, FileCall::List) == 2);
    }
  }
  // A journal that is still there and can't be read is an error.
  WatchedStorage storage(fails(FileCall::Read, ESTALE, FileRole::Journal));
  const auto file = storage.open(scene.path, Access::ReadOnly).value();
  CHECK_FALSE(scan_journals(storage, scene.path, *file));
}

TEST_CASE_METHOD(Planted, "a reader is excused from looking only where the directory can't be listed",
                 "[core][journal_scan]") {
  for (const int why : {EACCES, EMFILE, EIO}) {
    WatchedStorage storage(fails(FileCall::List, why));
    for (const Access access : {Access::ReadOnly, Access::ReadWrite}) {
      const auto archive = Archive::open(scene.path, access, storage);
      CHECK(archive.has_value() == (why == EACCES));
      if (!archive) CHECK(archive.error().errno_value == why);
    }
  }
  // A reader that can't open the journal gets an error.
  WatchedStorage storage(fails(FileCall::Open, EMFILE, FileRole::Journal));
  CHECK_FALSE(Archive::open(scene.path, Access::ReadOnly, storage));
}

TEST_CASE("a record is no longer than the archive's blocks can need", "[core][journal_scan]") {
  const Scene scene;
  const std::string journal =
      scene.directory.write(journal_prefix("m.safetensors") + JournalId::random().text(), "");
  // The largest sparse file that the file system allows.
  std::uint64_t size_bytes = std::uint64_t{1} << 62U;
  while (::truncate(journal.c_str(), static_cast<off_t>(size_bytes)) != 0) size_bytes /= 2;
  REQUIRE(size_bytes >= std::uint64_t{1} << 33U);
  const JournalHead head{
      .id = {}, .record = {kBlockBytes, size_bytes - kBlockBytes}, .record_hash = 1, .boot = {}};
  overwrite(journal, 0, encode_head(head));
  WatchedStorage storage;
  const JournalReport report = scene.recover_one(storage);
  CHECK(report.state == JournalState::Damaged);
  CHECK(report.blocks_commits);
  CHECK(std::ranges::count(storage.calls, FileCall::Read) < 10);
}

namespace {

/// A large archive, and a journal whose head alone takes disk space. The hash of its record is right.
struct SparseScene : Scene {
  explicit SparseScene(std::uint64_t record_bytes) {
    REQUIRE(::truncate(path.c_str(), off_t{1} << 40U) == 0);
    journal = directory.write(journal_prefix("m.safetensors") + JournalId::random().text(), "");
    REQUIRE(::truncate(journal.c_str(), static_cast<off_t>(kBlockBytes + record_bytes)) == 0);
    const std::string zeros(record_bytes, '\0');
    overwrite(journal, 0,
              encode_head({.id = {},
                           .record = {kBlockBytes, record_bytes},
                           .record_hash = XXH3_64bits(zeros.data(), zeros.size()),
                           .boot = {}}));
  }
  std::string journal;
};

}  // namespace

TEST_CASE("a long record that is a hole is not read", "[core][journal_scan]") {
  const SparseScene scene(std::uint64_t{64} << 20U);
  WatchedStorage storage;
  const JournalReport report = scene.recover_one(storage);
  CHECK(report.state == JournalState::Damaged);
  CHECK(report.explanation.find("hole") != std::string::npos);
  CHECK(report.blocks_commits);
  CHECK(std::ranges::count(storage.calls, FileCall::Read) < 10);
}

TEST_CASE("only a record of more than 1 MiB may be a hole that is not read", "[core][journal_scan]") {
  const std::uint64_t more_bytes = GENERATE(0U, 1U);
  const SparseScene scene((std::uint64_t{1} << 20U) + more_bytes);
  const JournalReport report = scene.recover_one();
  CHECK(report.state == JournalState::Damaged);
  CHECK((report.explanation.find("hole") != std::string::npos) == (more_bytes == 1));
}

TEST_CASE("a long record counts that has holes only where the old hashes are zeros", "[core][journal_scan]") {
  constexpr std::uint64_t kRecordBytes = std::uint64_t{4} << 20U;
  const SparseScene scene(kRecordBytes);
  overwrite(scene.journal, kBlockBytes, std::string(kRecordBytes / 2, 'h'));
  const JournalReport report = scene.recover_one();
  CHECK(report.explanation == "damaged: its record's hash does not match");
}

TEST_CASE("of another user's journal no record is read that is too long for the memory of this process",
          "[core][journal_scan]") {
  if (::geteuid() != 0) {
    test::note_skip("needs root, to give a journal to somebody else");
    return;
  }
  constexpr uid_t kUser = 12345;
  const std::uint64_t size_bytes = kMostRecordBytesOfOthers + GENERATE(0U, 1U);
  const Scene scene;
  REQUIRE(::truncate(scene.path.c_str(), off_t{1} << 40U) == 0);
  REQUIRE(::chown(scene.path.c_str(), kUser, kUser) == 0);
  const std::string journal =
      scene.directory.write(journal_prefix("m.safetensors") + JournalId::random().text(), "");
  REQUIRE(::truncate(journal.c_str(), static_cast<off_t>(kBlockBytes + size_bytes)) == 0);
  REQUIRE(::chown(journal.c_str(), kUser, kUser) == 0);
  const JournalHead head{.id = {}, .record = {kBlockBytes, size_bytes}, .record_hash = 1, .boot = {}};
  overwrite(journal, 0, encode_head(head));
  WatchedStorage storage;
  const JournalReport report = scene.recover_one(storage);
  const bool is_longer = size_bytes > kMostRecordBytesOfOthers;
  CHECK(report.state == (is_longer ? JournalState::Unknown : JournalState::Damaged));
  CHECK(report.blocks_commits);
  if (is_longer) CHECK(report.next_step == "run `stfs recover` as user 12345");
  CHECK(std::filesystem::exists(journal));
  CHECK(std::ranges::count(storage.calls, FileCall::Read) < 10);
}

TEST_CASE_METHOD(Planted, "beside a journal of a newer version nothing is written, and readers are told",
                 "[core][journal_scan]") {
  overwrite(journal, 8, std::string_view("\5\0\0\0", 4));
  const JournalReport report = scene.recover_one(system_storage(), {.is_dry_run = false, .is_forced = true});
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.explanation.find("use the version that wrote it") != std::string::npos);
  CHECK(report.next_step.find("if it is deleted, its committed change is lost") != std::string::npos);
  CHECK(std::filesystem::exists(journal));
  const auto obstacle = scene.obstacle();
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().message.find("use the version that wrote it") != std::string::npos);
  const auto archive = Archive::open(scene.path, Access::ReadOnly);
  REQUIRE(archive);
  REQUIRE((*archive)->recovered().size() == 1);
}

TEST_CASE_METHOD(Planted, "bytes of a journal in a file that was not made as one are never applied",
                 "[core][journal_scan]") {
  const std::filesystem::path copy = scene.directory / "copy";
  SECTION("a copy") {
    std::filesystem::copy_file(journal, copy);
    std::filesystem::rename(copy, journal);
  }
  SECTION("a copy that tells its own inode number, but not when it was made") {
    std::filesystem::copy_file(journal, copy);
    struct stat made {};
    REQUIRE(::stat(copy.c_str(), &made) == 0);
    auto head = decode_head(std::string_view(content_of(copy)).substr(0, kBlockBytes)).value();
    const auto status = system_storage().open(copy, Access::ReadOnly).value()->status().value();
    if (status.birth_ns != 0) head.own.inode = made.st_ino;
    overwrite(copy, 0, encode_head(head));
    std::filesystem::rename(copy, journal);
  }
  SECTION("one that tells no numbers") {
    overwrite(journal, kOwnNumbersAt, std::string(24, '\0'));
  }
  const JournalReport report = scene.recover_one(system_storage(), {.is_dry_run = false, .is_forced = true});
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.explanation == kOfOtherFile);
  CHECK(std::filesystem::exists(journal));
  CHECK(scene.is_untouched());
  const auto obstacle = scene.obstacle();
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().message.find(kOfOtherFile) != std::string::npos);
  std::filesystem::remove(journal);
  CHECK(*scene.obstacle() == Obstacle::None);
}

TEST_CASE_METHOD(Planted,
                 "a journal of a host without birth times counts where only the archive's writers make names",
                 "[core][journal_scan]") {
  const auto status = system_storage().open(journal, Access::ReadOnly).value()->status().value();
  if (status.birth_ns == 0) {
    test::note_skip("needs a file system with birth times");
    return;
  }
  auto head = decode_head(std::string_view(content_of(journal)).substr(0, kBlockBytes)).value();
  head.own.birth_ns = 0;
  overwrite(journal, 0, encode_head(head));
  const bool others_make_names = GENERATE(false, true);
  if (others_make_names) REQUIRE(::chmod((scene.directory / "").c_str(), 01777) == 0);
  const JournalReport report = scene.recover_one();
  CHECK((report.action == JournalAction::Applied) == !others_make_names);
  CHECK((report.state == JournalState::Unknown) == others_make_names);
  CHECK(scene.is_untouched() == others_make_names);
}

TEST_CASE_METHOD(Planted, "a journal that still has the name in which it was staged counts",
                 "[core][journal_scan]") {
  std::filesystem::path staged = journal;
  staged += kStagedSuffix;
  std::filesystem::create_hard_link(journal, staged);
  const bool has_third = GENERATE(false, true);
  if (has_third) std::filesystem::create_hard_link(journal, scene.directory / "third");
  static_cast<void>(scene.recover_all());
  CHECK(std::filesystem::exists(journal) == has_third);
  CHECK(content_of(scene.path) == (has_third ? scene.before : scene.patched()));
}

TEST_CASE_METHOD(Planted, "a staged journal with a second name that is not the journal's stays",
                 "[core][journal_scan]") {
  std::filesystem::path staged = journal;
  staged += kStagedSuffix;
  std::filesystem::rename(journal, staged);
  const bool has_other = GENERATE(false, true);
  if (has_other) std::filesystem::create_hard_link(staged, scene.directory / "other");
  static_cast<void>(scene.recover_all());
  CHECK(std::filesystem::exists(staged) == has_other);
  CHECK(scene.is_untouched());
}

TEST_CASE_METHOD(Planted, "a journal that was moved away and back counts", "[core][journal_scan]") {
  std::filesystem::rename(journal, scene.directory / "away");
  std::filesystem::rename(scene.directory / "away", journal);
  CHECK(scene.recover_one().action == JournalAction::Applied);
  CHECK(content_of(scene.path) == scene.patched());
}

namespace {

/// Rewrites the planted journal's record without the types of its operations, and its head.
/// @param version  2 or 3. Version 2 has no boot: the head's hash comes where the boot would be.
void rewrite_in_version(const std::filesystem::path& journal, char version) {
  const std::string bytes = content_of(journal);
  const auto head = decode_head(std::string_view(bytes).substr(0, kBlockBytes)).value();
  const auto record =
      decode_record(std::string_view(bytes).substr(head.record.offset, head.record.size_bytes), bytes.size())
          .value();
  std::string text = encode_beginning(record);
  for (const JournalRange& range : record.ranges) text += encode_range(range).substr(8);
  const auto number = [](std::uint64_t value) {
    std::string out;
    for (unsigned byte = 0; byte < 8; ++byte) out += static_cast<char>(value >> (8 * byte));
    return out;
  };
  std::string block = bytes.substr(0, version == 2 ? 52 : 76);
  block[8] = version;
  block.replace(36, 8, number(text.size()));
  block.replace(44, 8, number(XXH3_64bits(text.data(), text.size())));
  block += number(XXH3_64bits(block.data(), block.size()));
  block.resize(kBlockBytes, '\0');
  block.replace(kOwnNumbersAt, 24, bytes.substr(kOwnNumbersAt, 24));
  overwrite(journal, 0, block);
  overwrite(journal, head.record.offset, text);
  std::filesystem::resize_file(journal, head.record.offset + text.size());
}

}  // namespace

TEST_CASE("a journal of a previous version is still applied", "[core][journal_scan]") {
  const Scene scene;
  const char version = GENERATE(as<char>{}, 2, 3);
  rewrite_in_version(scene.plant(), version);
  WatchedStorage later({}, later_boot());
  Storage& storage = version == 2 ? static_cast<Storage&>(later) : system_storage();
  CHECK(scene.recover_one(storage).action == JournalAction::Applied);
  CHECK(content_of(scene.path) == scene.patched());
}

TEST_CASE_METHOD(Planted, "a journal with a lease blocks commits, names the owner and stops no reader",
                 "[core][journal_scan]") {
  WatchedStorage storage(fails(FileCall::Open, EAGAIN, FileRole::Journal));
  const auto obstacle = scene.obstacle(storage);
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().message.find("holds a lease on it") != std::string::npos);
  CHECK(obstacle.error().message.find(journal.string()) != std::string::npos);
  const auto archive = Archive::open(scene.path, Access::ReadOnly, storage);
  REQUIRE(archive);
  REQUIRE((*archive)->recovered().size() == 1);
  CHECK((*archive)->recovered().front().blocks_commits);
}

TEST_CASE("journals that nobody uses are not kept open, however many there are", "[core][journal_scan]") {
  const Scene scene;
  for (int number = 0; number < 50; ++number) {
    scene.directory.write(journal_prefix("m.safetensors") + JournalId::random().text() + ".staged", "x");
    scene.directory.write(journal_prefix("m.safetensors") + JournalId::random().text(), "no journal");
  }
  const auto file = system_storage().open(scene.path, Access::ReadWrite).value();
  const auto found = scan_journals(system_storage(), scene.path, *file);
  REQUIRE(found);
  CHECK(found->size() == 100);
  CHECK(std::ranges::all_of(*found, [](const FoundJournal& one) { return one.file == nullptr; }));
  const auto reports = scene.recover_all();
  REQUIRE(reports);
  CHECK(std::ranges::count(*reports, JournalAction::Removed, &JournalReport::action) == 50);
}

TEST_CASE("a journal that was closed is opened again only if its name leads to the same file",
          "[core][journal_scan]") {
  const Scene scene;
  const std::string name = journal_prefix("m.safetensors") + JournalId::random().text() + ".staged";
  const std::string path = scene.directory.write(name, "x");
  const auto file = system_storage().open(scene.path, Access::ReadWrite).value();
  auto found = scan_journals(system_storage(), scene.path, *file).value();
  REQUIRE(found.size() == 1);
  REQUIRE(open_found(system_storage(), found.front()).value());
  REQUIRE(found.front().file);
  found.front().file.reset();
  const std::string other = scene.directory.write("other", "y");
  std::filesystem::rename(other, path);
  CHECK_FALSE(open_found(system_storage(), found.front()).value());
  std::filesystem::remove(path);
  CHECK_FALSE(open_found(system_storage(), found.front()).value());
}

TEST_CASE("of names that are no journals only some have a report, and all are counted",
          "[core][journal_scan]") {
  const Scene scene;
  constexpr std::size_t kMore = 50;
  for (std::size_t number = 0; number < kMostIgnoredNames + kMore; ++number)
    scene.directory.write(".m.safetensors.stj.odd" + std::to_string(number), "");
  const auto reports = scene.recover_all();
  REQUIRE(reports);
  REQUIRE(reports->size() == kMostIgnoredNames);
  CHECK(std::ranges::all_of(*reports, [](const JournalReport& report) { return report.is_ignored; }));
  CHECK(reports->back().more_ignored == kMore);
  CHECK(scene.obstacle().value() == Obstacle::None);
  // A journal with such a name has its own report.
  const auto journal = scene.plant();
  const auto found = scene.recover_all();
  REQUIRE(found);
  CHECK(found->size() == kMostIgnoredNames + 1);
  CHECK_FALSE(std::filesystem::exists(journal));
}
