// Tests the recovery of journals that are found beside an archive.
#include "core/journal/recovery.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/archive/archive.h"
#include "core/commit/commit_locks.h"
#include "tests/core/planted_scene.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE_METHOD(Planted, "a dead owner's committed journal is applied and removed", "[core][recovery]") {
  const JournalReport report = scene.recover_one();
  CHECK(report.state == JournalState::Committed);
  CHECK(report.action == JournalAction::Applied);
  CHECK(report.path == journal);
  CHECK(report.ranges == 1);
  CHECK(report.size_bytes == 2 * kBlockBytes);
  CHECK(content_of(scene.path) == scene.patched());
  CHECK_FALSE(std::filesystem::exists(journal));
  CHECK(scene.recover_all()->empty());
}

TEST_CASE_METHOD(Planted, "a dry run only looks", "[core][recovery]") {
  const JournalReport report = scene.recover_one(system_storage(), {.is_dry_run = true, .is_forced = false});
  CHECK(report.state == JournalState::Committed);
  CHECK(report.action == JournalAction::None);
  CHECK(scene.is_untouched());
  CHECK(std::filesystem::exists(journal));
}

TEST_CASE("journals that promise nothing cost no listing of the directory each", "[core][recovery]") {
  const Scene scene;
  for (int at = 0; at < 10; ++at)
    scene.directory.write(journal_prefix("m.safetensors") + JournalId::random().text(), "");
  WatchedStorage storage;
  const auto reports = scene.recover_all(storage).value();
  REQUIRE(reports.size() == 10);
  CHECK(std::ranges::all_of(reports,
                            [](const JournalReport& one) { return one.action == JournalAction::Removed; }));
  CHECK(storage.count(FileCall::List) == 2);
}

TEST_CASE_METHOD(Planted, "a journal whose owner lives is left to him", "[core][recovery]") {
  const auto owner = system_storage().open(journal, Access::ReadWrite).value();
  REQUIRE_FALSE(owner->try_lock({0, 1}, LockKind::Exclusive)->has_value());
  CHECK(scene.recover_one().state == JournalState::InUse);
  CHECK(scene.is_untouched());
  CHECK(std::filesystem::exists(journal));
}

namespace {

/// Takes the lock that a user can take who may only read the file.
std::unique_ptr<File> readers_lock(const std::filesystem::path& path, ByteRange range) {
  auto reader = system_storage().open(path, Access::ReadOnly).value();
  REQUIRE_FALSE(reader->try_lock(range, LockKind::Shared)->has_value());
  return reader;
}

}  // namespace

TEST_CASE_METHOD(Planted, "a reader's lock on a dead owner's journal stops nobody", "[core][recovery]") {
  const auto reader = readers_lock(journal, {0, 1U << 20U});
  SECTION("the journal holds a commit") {
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("the journal is void") {
    overwrite(journal, 0, std::string(kBlockBytes, '\0'));
    CHECK(scene.recover_one().action == JournalAction::Removed);
    CHECK(scene.is_untouched());
  }
  CHECK_FALSE(std::filesystem::exists(journal));
  CHECK(scene.obstacle().value() == Obstacle::None);
}

TEST_CASE_METHOD(Planted, "a reader's lock on the archive lets a writer read what is committed",
                 "[core][recovery]") {
  auto reader = readers_lock(scene.path, {std::uint64_t{1} << 62U, std::uint64_t{1} << 61U});
  const auto archive = Archive::open(scene.path, Access::ReadWrite);
  REQUIRE(archive);
  std::vector<std::byte> scratch;
  const auto shown = (*archive)->read({kBlockBytes, 2 * kBlockBytes}, scratch);
  REQUIRE(shown);
  CHECK(std::ranges::all_of(*shown, [](std::byte one) { return one == std::byte{'n'}; }));
  CHECK(scene.is_untouched());
  CommitOptions at_once;
  at_once.lock_patience = std::chrono::milliseconds(0);
  const std::vector<ByteRange> block = {{kBlockBytes, kBlockBytes}};
  const auto refused = lock_for_commit(**archive, block, at_once);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EBUSY);
  CHECK(refused.error().message.find(fmt::format("process {}", ::getpid())) != std::string::npos);
  reader.reset();
  CHECK(lock_for_commit(**archive, block, at_once));
  CHECK(content_of(scene.path) == scene.patched());
}

// tests/crash and tests/fuzz damage every byte and cut at every end.
TEST_CASE_METHOD(Planted, "a damaged journal is neither applied nor removed", "[core][recovery]") {
  SECTION("a byte flipped") {
    flip(journal, GENERATE(0, 5000, 3 * kBlockBytes + 17));
  }
  SECTION("cut") {
    std::filesystem::resize_file(journal, GENERATE(100, 5000));
  }
  const JournalReport report = scene.recover_one();
  CAPTURE(report.explanation);
  CHECK(report.state == JournalState::Damaged);
  CHECK(report.action == JournalAction::None);
  CHECK(scene.is_untouched());
  CHECK(std::filesystem::exists(journal));
}

TEST_CASE("beside a damaged journal nothing is written", "[core][recovery]") {
  const Scene scene;
  flip(scene.plant(), 5000);
  const auto file = system_storage().open(scene.path, Access::ReadWrite).value();
  const std::vector<ByteRange> locked = {{3 * kBlockBytes, 1}};
  const auto obstacle = find_obstacle(system_storage(), scene.path, *file, locked);
  REQUIRE_FALSE(obstacle);
  CHECK(obstacle.error().errno_value == EIO);
  CHECK(obstacle.error().message.find("stfs recover") != std::string::npos);
}

TEST_CASE_METHOD(Planted,
                 "a journal of another archive is foreign: by force only, and only over blocks it knows",
                 "[core][recovery]") {
  // The same content is in another inode.
  std::filesystem::rename(scene.path, scene.directory / "old");
  static_cast<void>(scene.directory.write("m.safetensors", scene.before));
  CHECK(scene.recover_one().state == JournalState::Foreign);
  CHECK(scene.obstacle().value() == Obstacle::None);
  CHECK(scene.is_untouched());
  CHECK(std::filesystem::exists(journal));
  SECTION("every block is known") {
    CHECK(scene.recover_one(system_storage(), {.is_dry_run = false, .is_forced = true}).action ==
          JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("a block is neither old nor new") {
    flip(scene.path, kBlockBytes + 3);
    const std::string now = content_of(scene.path);
    CHECK(scene.recover_one(system_storage(), {.is_dry_run = false, .is_forced = true}).action ==
          JournalAction::None);
    CHECK(content_of(scene.path) == now);
    CHECK(std::filesystem::exists(journal));
  }
}

TEST_CASE_METHOD(Planted, "what only has a journal's name is left alone", "[core][recovery]") {
  const std::string name = journal.filename().string();
  SECTION("a symbolic link") {
    std::filesystem::rename(journal, scene.directory / "elsewhere");
    std::filesystem::create_symlink("elsewhere", journal);
  }
  SECTION("a directory") {
    std::filesystem::remove(journal);
    std::filesystem::create_directory(journal);
  }
  SECTION("another name") {
    std::filesystem::rename(journal, journal.string() + "x");
  }
  const JournalReport report = scene.recover_one();
  CHECK(report.state == JournalState::Unknown);
  CHECK_FALSE(report.explanation.empty());
  CHECK(report.path.filename().string().starts_with(name));
  CHECK(scene.obstacle().value() == Obstacle::None);
  CHECK(scene.is_untouched());
  CHECK(std::filesystem::exists(std::filesystem::symlink_status(report.path)));
}

TEST_CASE_METHOD(Planted, "a leftover of staging is removed", "[core][recovery]") {
  std::filesystem::rename(journal, journal.string() + std::string(kStagedSuffix));
  const JournalReport report = scene.recover_one();
  CHECK(report.state == JournalState::Unfinished);
  CHECK(report.action == JournalAction::Removed);
  CHECK(scene.is_untouched());
}

TEST_CASE("recovery that fails at any call leaves the journal or the new content", "[core][recovery]") {
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth);
    const Scene scene;
    scene.plant();
    FaultyStorage storage;
    const auto file = storage.open(scene.path, Access::ReadWrite).value();
    storage.plan().fail_call(nth, EIO);
    static_cast<void>(recover(storage, scene.path, *file));
    const bool has_failed = storage.plan().failed().has_value();
    storage.plan().fail_call(0, 0);
    REQUIRE(scene.recover_all());
    CHECK(content_of(scene.path) == scene.patched());
    CHECK(scene.recover_all()->empty());
    if (!has_failed) break;
  }
}

TEST_CASE_METHOD(Planted, "an archive opened read-only shows what is committed and is not touched",
                 "[core][recovery]") {
  const auto archive = Archive::open(scene.path, Access::ReadOnly).value();
  std::vector<std::byte> scratch;
  const auto bytes = archive->read({kBlockBytes - 8 + 8, 3 * kBlockBytes}, scratch);
  REQUIRE(bytes);
  const std::string_view seen(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  CHECK(seen == scene.patched().substr(kBlockBytes));
  CHECK(scene.is_untouched());
  CHECK(std::filesystem::exists(journal));
  // A reader's lock does not keep a writer from the recovery.
  CHECK(scene.recover_one().action == JournalAction::Applied);
}

TEST_CASE("a journal that another process removes before recovery has it is not applied",
          "[core][recovery]") {
  bool is_applied = false;
  for (std::ptrdiff_t list = 1; !is_applied; ++list) {
    const Scene scene;
    const std::filesystem::path journal = scene.plant();
    std::ptrdiff_t lists = 0;
    WatchedStorage storage([&](const SeamCall& call) {
      if (call.kind == FileCall::List && ++lists == list) std::filesystem::remove(journal);
      return Verdict{};
    });
    const auto reports = scene.recover_all(storage);
    CAPTURE(list);
    REQUIRE(reports);
    is_applied = lists < list;
    CHECK(content_of(scene.path) == (is_applied ? scene.patched() : scene.before));
    CHECK(reports->size() == (is_applied ? 1 : 0));
    CHECK(list < 10);
  }
}
