// Lane journals that are damaged, cut or torn, and recoveries that end early.
#include <filesystem>
#include <fstream>
#include <string>

#include "core/journal/lane_scan.h"
#include "tests/core/owned_archive.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/lying_storage.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Leaves two records: '1' is applied, '2' is not. This state exists if the head of the later lane was on the
/// disk before the zeros over the head of the earlier lane.
void die_with_two_records(OwnedArchive& sample, std::size_t later_lane) {
  if (later_lane == 0) {
    sample.commit('x');
    sample.apply('x');
  }
  sample.commit('1');
  sample.apply('1');
  const std::string first = content_of(sample.journal);
  sample.commit('2');
  sample.die();
  for (const bool is_copy : {false, true}) {
    const std::uint64_t at = head_at(1 - later_lane, is_copy);
    overwrite(sample.journal, at, std::string_view(first).substr(at, kBlockBytes));
  }
}

/// Makes a journal again that recovery has removed. Only its heads and the new bytes of its lanes are not
/// zeros.
void put_back(const std::filesystem::path& journal, std::string& intact) {
  std::ofstream(journal).close();
  const auto made = system_storage().open(journal, Access::ReadOnly).value()->status().value();
  for (std::uint64_t at = kLaneHeads.offset; at < kLaneHeads.end(); at += kBlockBytes) {
    auto head = decode_head(std::string_view(intact).substr(at, kBlockBytes));
    if (!head) continue;
    head->own = FileNumbers::of(made);
    intact.replace(at, kOwnNumbersAt + 24, encode_head(*head), 0, kOwnNumbersAt + 24);
  }
  std::filesystem::resize_file(journal, intact.size());
  overwrite(journal, kLaneHeads.offset,
            std::string_view(intact).substr(kLaneHeads.offset, kLaneHeads.size_bytes));
  for (const std::size_t lane : {0U, 1U})
    overwrite(journal, new_bytes_at(lane),
              std::string_view(intact).substr(new_bytes_at(lane), kChangedBytes));
}

}  // namespace

TEST_CASE("no flipped byte of a lane journal makes recovery write anything but the new bytes",
          "[core][lane_scan][exhaustive]") {
  // Damages each byte of the heads, and some bytes of the lanes. The storage skips its syncs.
  using enum FileCall;
  LyingStorage storage(
      system_storage(),
      {{Sync, FileRole::Archive}, {Sync, FileRole::Journal}, {SyncDirectory, FileRole::Directory}});
  const std::size_t lane = GENERATE(0, 1);
  const std::uint64_t applied_bytes = GENERATE(std::uint64_t{0}, kBlockBytes, kChangedBytes);
  CAPTURE(lane, applied_bytes);
  OwnedArchive sample;
  sample.commit_in(lane, 'n');
  sample.die();
  std::string intact = content_of(sample.journal);
  std::string start = sample.before;
  start.replace(kChangedAt, applied_bytes, std::string(applied_bytes, 'n'));

  std::size_t applied = 0;
  std::size_t dropped = 0;
  std::size_t left_alone = 0;
  const auto check = [&](std::uint64_t at) {
    // Recovery changes nothing but the heads and the name.
    if (!sample.has_journal()) put_back(sample.journal, intact);
    std::string damaged = intact;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    overwrite(sample.journal, kLaneHeads.offset,
              std::string_view(damaged).substr(kLaneHeads.offset, kLaneHeads.size_bytes));
    overwrite(sample.journal, at, std::string_view(damaged).substr(at, 1));
    overwrite(sample.path, kChangedAt, std::string_view(start).substr(kChangedAt, kChangedBytes));
    const JournalReport report = sample.recover_one({}, storage);
    const std::string after = sample.content();
    const bool is_in_use = at >= new_bytes_at(lane) && at < new_bytes_at(lane) + kChangedBytes;
    bool is_right = false;
    if (report.action == JournalAction::Applied) {
      ++applied;
      is_right = !is_in_use && after == sample.patched('n') && !sample.has_journal();
    } else if (report.action == JournalAction::Removed) {
      // The journal looks as if its sync was never done. Then the archive was never changed.
      ++dropped;
      is_right =
          is_in_use && applied_bytes == 0 && after == start && report.state == JournalState::Unfinished;
    } else {
      ++left_alone;
      is_right = is_in_use && applied_bytes != 0 && after == start && report.state == JournalState::Damaged &&
                 report.blocks_commits && content_of(sample.journal) == damaged;
    }
    if (!is_right) FAIL("byte " << at << ": " << name_of(report.state) << ", " << report.explanation);
    if (sample.has_journal()) overwrite(sample.journal, at, std::string_view(intact).substr(at, 1));
  };
  // In one state the test damages every byte of the heads, and in the others every 41st.
  const std::uint64_t step = applied_bytes == kBlockBytes ? 1 : 41;
  for (std::uint64_t at = kLaneHeads.offset; at < kLaneHeads.end(); at += step) check(at);
  for (std::uint64_t at = 0; at < kLaneJournalBytes; at += 509) {
    if (at < kLaneHeads.offset || at >= kLaneHeads.end()) check(at);
  }
  CHECK(applied > kLaneHeads.size_bytes / step);
  CHECK((applied_bytes == 0 ? dropped : left_alone) >= kChangedBytes / 509);
  CHECK((applied_bytes == 0 ? left_alone : dropped) == 0);
}

TEST_CASE("a dead owner's lane journal without bytes was left by a lost boot and is removed",
          "[core][lane_scan]") {
  OwnedArchive sample;
  sample.commit('n');
  sample.die();
  std::filesystem::resize_file(sample.journal, 0);
  const JournalReport report = sample.recover_one();
  CHECK(report.state == JournalState::Unfinished);
  CHECK(report.action == JournalAction::Removed);
  CHECK_FALSE(report.blocks_commits);
  CHECK_FALSE(std::filesystem::exists(sample.journal));
}

TEST_CASE("a lane journal that was cut or has grown is damaged: never applied nor removed",
          "[core][lane_scan]") {
  const std::uint64_t size_bytes =
      GENERATE(std::uint64_t{1}, 100, kBlockBytes, kLaneHeads.offset, kLaneHeads.end(), kLaneJournalBytes - 1,
               kLaneJournalBytes + 1, kLaneJournalBytes + kBlockBytes, 1 << 20);
  const bool is_alive = GENERATE(false, true);
  CAPTURE(size_bytes, is_alive);
  OwnedArchive sample;
  sample.commit('n');
  if (!is_alive) sample.die();
  std::filesystem::resize_file(sample.journal, size_bytes);
  const JournalReport report = sample.recover_one();
  CHECK(report.state == JournalState::Damaged);
  CHECK(report.action == JournalAction::None);
  CHECK(report.blocks_commits);
  CHECK_FALSE(report.explanation.empty());
  CHECK(sample.content() == sample.before);
  CHECK(std::filesystem::file_size(sample.journal) == size_bytes);
  CHECK(sample.blocks_commits());
}

TEST_CASE("a lane that is torn over an archive with the old blocks was never committed",
          "[core][lane_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  const std::uint64_t torn_at = GENERATE(std::uint64_t{0}, 5000);
  OwnedArchive sample;
  sample.commit_in(lane, 'n');
  sample.die();
  overwrite(sample.journal, new_bytes_at(lane) + torn_at, std::string(512, '\0'));
  const auto file = system_storage().open(sample.journal, Access::ReadOnly).value();
  const auto archive = system_storage().open(sample.path, Access::ReadOnly).value();
  CHECK(*judge_lane(*file, sample.records().at(0), *archive) == LaneVerdict::Torn);
  CHECK(*sample.obstacle({{kBlockBytes, 1}}) == Obstacle::DeadOwner);
  const JournalReport report = sample.recover_one();
  CHECK(report.state == JournalState::Unfinished);
  CHECK(report.action == JournalAction::Removed);
  CHECK(sample.content() == sample.before);
  CHECK_FALSE(sample.has_journal());
  CHECK(*sample.obstacle({{kBlockBytes, 1}}) == Obstacle::None);
}

TEST_CASE("a lane that is torn over an archive with new blocks is damaged, and nothing is written beside it",
          "[core][lane_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  // The archive has a part of the first new block, the first block, or both blocks.
  const std::uint64_t applied_bytes = GENERATE(std::uint64_t{512}, kBlockBytes, kChangedBytes);
  OwnedArchive sample;
  sample.commit_in(lane, 'n');
  sample.die();
  overwrite(sample.journal, new_bytes_at(lane) + kBlockBytes, std::string(512, '\0'));
  overwrite(sample.path, kChangedAt, std::string(applied_bytes, 'n'));
  const std::string archive_before = sample.content();
  const std::string journal_before = content_of(sample.journal);
  const auto file = system_storage().open(sample.journal, Access::ReadOnly).value();
  const auto archive = system_storage().open(sample.path, Access::ReadOnly).value();
  CHECK(*judge_lane(*file, sample.records().at(0), *archive) == LaneVerdict::Damaged);
  CHECK(sample.blocks_commits());
  for (const bool is_forced : {false, true}) {
    const JournalReport report = sample.recover_one({.is_dry_run = false, .is_forced = is_forced});
    CHECK(report.state == JournalState::Damaged);
    CHECK(report.action == JournalAction::None);
  }
  CHECK(sample.content() == archive_before);
  CHECK(content_of(sample.journal) == journal_before);
}

TEST_CASE("of two lanes with a record the later commit counts", "[core][lane_scan]") {
  const std::size_t later_lane = GENERATE(0, 1);
  OwnedArchive sample;
  die_with_two_records(sample, later_lane);
  const auto records = sample.records();
  REQUIRE(records.size() == 2);
  CHECK(records[0].sequence > records[1].sequence);
  CHECK(lane_of(records[0]) == later_lane);
  CHECK(lane_of(records[1]) == 1 - later_lane);
  SECTION("it is whole") {
    sample.apply(GENERATE('1', '2'));
    CHECK(sample.recover_one().action == JournalAction::Applied);
    CHECK(sample.content() == sample.patched('2'));
  }
  SECTION("it is torn: then the earlier one was the last") {
    overwrite(sample.journal, new_bytes_at(later_lane) + kBlockBytes - 256, std::string(512, '\0'));
    CHECK(sample.recover_one().action == JournalAction::Applied);
    CHECK(sample.content() == sample.patched('1'));
  }
  SECTION("it is torn and the archive has got it: the earlier one is not applied over it") {
    sample.apply('2');
    overwrite(sample.journal, new_bytes_at(later_lane), std::string(512, '\0'));
    CHECK(sample.recover_one().state == JournalState::Damaged);
    CHECK(sample.content() == sample.patched('2'));
    CHECK(sample.blocks_commits());
    return;
  }
  CHECK_FALSE(sample.has_journal());
}

TEST_CASE("while two lanes are recovered the earlier one is never left alone", "[core][lane_scan]") {
  OwnedArchive sample;
  die_with_two_records(sample, 1);
  REQUIRE(sample.records().size() == 2);
  // While recovery makes both records void, a power loss may keep any of their blocks. The earlier record is
  // therefore void on the disk before recovery writes the archive.
  bool is_synced = false;
  int writes = 0;
  WatchedStorage storage([&](const SeamCall& call) {
    if (call.role == FileRole::Journal && call.kind == FileCall::Sync) {
      is_synced = sample.records().size() == 1;
    } else if (call.role == FileRole::Archive && call.kind == FileCall::Write) {
      ++writes;
      CHECK(is_synced);
      REQUIRE(sample.records().size() == 1);
      CHECK(sample.records()[0].sequence == 2);
    }
    return Verdict{};
  });
  CHECK(sample.recover_one({}, storage).action == JournalAction::Applied);
  CHECK(writes > 0);
  CHECK(sample.content() == sample.patched('2'));
}

TEST_CASE("recovery of a lane journal that fails at any call is finished by the next", "[core][lane_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  const bool is_for_good = GENERATE(false, true);
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth, lane, is_for_good);
    OwnedArchive sample;
    sample.commit_in(lane, 'n');
    sample.die();
    FaultyStorage storage;
    const auto file = storage.open(sample.path, Access::ReadWrite).value();
    storage.plan().set(
        {.nth = nth, .errno_value = EIO, .kind = {}, .is_for_good = is_for_good, .cuts_short = is_for_good});
    static_cast<void>(recover(storage, sample.path, *file));
    const bool has_failed = storage.plan().failed().has_value();
    storage.plan().fail_call(0, 0);
    REQUIRE(sample.recover_all());
    CHECK(sample.content() == sample.patched('n'));
    CHECK(sample.recover_all()->empty());
    if (!has_failed) break;
  }
}
