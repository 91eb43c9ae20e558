// What a look at the journals of an archive finds, and what it does not touch.
#include "core/journal/journal_scan.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>

#include "core/archive/archive.h"
#include "core/journal/journal_file.h"
#include "core/journal/recovery.h"
#include "tests/core/planted_scene.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

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
  overwrite(journal, kBlockBytes, "X");
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
  overwrite(journal, 0, encode_head(head));
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
  overwrite(journal, 8, std::string_view("\4\0\0\0", 4));
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
  overwrite(journal, 0, block);
  WatchedStorage later({}, later_boot());
  CHECK(scene.recover_one(later).action == JournalAction::Applied);
  CHECK(content_of(scene.path) == scene.patched());
}
