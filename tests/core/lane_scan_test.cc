// Lane journals that a scan finds beside an archive: of a dead owner, of a living owner, and of another
// archive.
#include "core/journal/lane_scan.h"

#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "tests/core/owned_archive.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kVersionAt = 8;  // in a head

}  // namespace

TEST_CASE("a record is found as long as its head or the copy is sound", "[core][lane_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  // Bytes of the magic, the id, the record's place, the hashes and the record.
  const std::uint64_t at = GENERATE(0, 8, 13, 28, 36, 44, 52, 128, 150, 200);
  CAPTURE(lane, at);
  OwnedArchive sample;
  sample.commit_in(lane, 'n');
  REQUIRE(sample.records().size() == 1);
  const auto intact = encode_record(sample.records()[0]);
  CHECK(lane_of(sample.records()[0]) == lane);
  SECTION("both are sound") {
    REQUIRE(sample.records().size() == 1);
  }
  SECTION("the head is damaged") {
    flip(sample.journal, head_at(lane, false) + at);
    REQUIRE(sample.records().size() == 1);
    CHECK(encode_record(sample.records()[0]) == intact);
  }
  SECTION("the copy is damaged") {
    flip(sample.journal, head_at(lane, true) + at);
    REQUIRE(sample.records().size() == 1);
    CHECK(encode_record(sample.records()[0]) == intact);
  }
  SECTION("both are damaged") {
    flip(sample.journal, head_at(lane, false) + at);
    flip(sample.journal, head_at(lane, true) + (at < 52 ? 140 : 30));
    const auto records = read_lanes(*system_storage().open(sample.journal, Access::ReadOnly).value());
    if (at == kVersionAt) {
      // An unknown version may be a commit of a newer program instead of damage.
      REQUIRE_FALSE(records);
      CHECK(records.error().errno_value == EPROTONOSUPPORT);
    } else {
      REQUIRE(records);
      CHECK(records->empty());
    }
  }
  SECTION("the other lane's are no matter") {
    flip(sample.journal, head_at(1 - lane, false) + at);
    flip(sample.journal, head_at(1 - lane, true) + at);
    REQUIRE(sample.records().size() == 1);
  }
}

TEST_CASE("a dead owner's last commit is applied, and the journal removed", "[core][lane_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  OwnedArchive sample;
  sample.commit_in(lane, 'n');
  sample.die();
  CHECK(*sample.obstacle({{kBlockBytes, 1}}) == Obstacle::DeadOwner);
  SECTION("a dry run only looks") {
    const JournalReport report = sample.recover_one({.is_dry_run = true, .is_forced = false});
    CHECK(report.state == JournalState::Committed);
    CHECK(report.action == JournalAction::None);
    CHECK(sample.content() == sample.before);
    CHECK(sample.has_journal());
  }
  SECTION("not applied yet") {
    const JournalReport report = sample.recover_one();
    CHECK(report.state == JournalState::Committed);
    CHECK(report.action == JournalAction::Applied);
    CHECK(report.path == sample.journal);
    CHECK(report.ranges == 1);
    CHECK(report.size_bytes == kChangedBytes);
    CHECK(sample.content() == sample.patched('n'));
  }
  SECTION("applied in part") {
    overwrite(sample.path, kChangedAt, std::string(kBlockBytes + 7, 'n'));
    CHECK(sample.recover_one().action == JournalAction::Applied);
    CHECK(sample.content() == sample.patched('n'));
  }
  SECTION("applied") {
    sample.apply('n');
    CHECK(sample.recover_one().action == JournalAction::Applied);
    CHECK(sample.content() == sample.patched('n'));
  }
  if (!sample.has_journal()) CHECK(sample.recover_all()->empty());
}

TEST_CASE("a copy of a lane journal is never applied", "[core][lane_scan]") {
  OwnedArchive sample;
  sample.commit_in(GENERATE(0, 1), 'n');
  sample.die();
  const std::string copy = std::string(sample.journal) + ".copy";
  std::filesystem::copy_file(sample.journal, copy);
  std::filesystem::rename(copy, sample.journal);
  const JournalReport report = sample.recover_one();
  CHECK(report.state == JournalState::Unknown);
  CHECK(report.blocks_commits);
  CHECK(report.explanation == kOfOtherFile);
  CHECK(sample.content() == sample.before);
}

TEST_CASE("a dead owner's journal without a record is removed", "[core][lane_scan]") {
  const bool has_settled = GENERATE(false, true);
  OwnedArchive sample;
  if (has_settled) {
    sample.commit('n');
    sample.apply('n');
    REQUIRE(sample.owner->settle(Durability::Process));
  }
  const std::string now = sample.content();
  sample.die();
  CHECK(*sample.obstacle({{kBlockBytes, 1}}) == Obstacle::DeadOwner);
  const JournalReport report = sample.recover_one();
  CHECK(report.state == JournalState::Unfinished);
  CHECK(report.action == JournalAction::Removed);
  CHECK(sample.content() == now);
  CHECK_FALSE(sample.has_journal());
}

TEST_CASE("a lane journal of another archive is foreign: neither applied nor removed", "[core][lane_scan]") {
  OwnedArchive sample;
  sample.commit('n');
  sample.die();
  // The same content in another inode.
  std::filesystem::rename(sample.path, sample.directory / "old");
  static_cast<void>(sample.directory.write("m.safetensors", sample.before));
  const JournalReport report = sample.recover_one();
  CHECK(report.state == JournalState::Foreign);
  CHECK(report.action == JournalAction::None);
  CHECK(sample.content() == sample.before);
  CHECK(sample.has_journal());
  CHECK(sample.records().size() == 1);
  CHECK(*sample.obstacle({{kChangedAt, kChangedBytes}}) == Obstacle::None);
  SECTION("by force it is applied over blocks that it knows") {
    CHECK(sample.recover_one({.is_dry_run = false, .is_forced = true}).action == JournalAction::Applied);
    CHECK(sample.content() == sample.patched('n'));
    CHECK_FALSE(sample.has_journal());
  }
  SECTION("and over others not even by force") {
    overwrite(sample.path, kChangedAt + 5, "other");
    const std::string now = sample.content();
    CHECK(sample.recover_one({.is_dry_run = false, .is_forced = true}).action == JournalAction::None);
    CHECK(sample.content() == now);
    CHECK(sample.has_journal());
  }
}

TEST_CASE("what a living owner has committed is his, and unsettled where it names the blocks",
          "[core][lane_scan]") {
  OwnedArchive sample;
  const std::vector<ByteRange> named = {{kChangedAt + 5, 1}};
  const std::vector<ByteRange> other = {{kBlockBytes, 2 * kBlockBytes}};
  CHECK(*sample.obstacle(named) == Obstacle::None);  // it holds no record
  sample.commit_in(GENERATE(0, 1), 'n');
  const std::string journal_before = content_of(sample.journal);
  CHECK(*sample.obstacle(named) == Obstacle::Unsettled);
  CHECK(*sample.obstacle({{kChangedAt + kChangedBytes - 1, 1}}) == Obstacle::Unsettled);
  CHECK(*sample.obstacle(other) == Obstacle::None);
  CHECK(*sample.obstacle(named, sample.journal) == Obstacle::None);  // one's own
  for (const bool is_forced : {false, true}) {
    const JournalReport report = sample.recover_one({.is_dry_run = false, .is_forced = is_forced});
    CHECK(report.state == JournalState::InUse);
    CHECK(report.action == JournalAction::None);
    CHECK_FALSE(report.blocks_commits);
  }
  CHECK(sample.content() == sample.before);
  CHECK(content_of(sample.journal) == journal_before);
  REQUIRE(sample.owner->settle(Durability::Process));
  CHECK(*sample.obstacle(named) == Obstacle::None);
}

TEST_CASE("an archive opened read-only shows what a dead owner has committed, and nothing is touched",
          "[core][lane_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  OwnedArchive sample;
  sample.commit_in(lane, 'n');
  sample.die();
  std::string expected = sample.patched('n');
  SECTION("committed") {}
  SECTION("torn") {
    overwrite(sample.journal, new_bytes_at(lane), std::string(512, '\0'));
    expected = sample.before;
  }
  SECTION("its head is damaged") {
    flip(sample.journal, head_at(lane, false) + 20);
  }
  const std::string journal_before = content_of(sample.journal);
  const auto archive = Archive::open(sample.path, Access::ReadOnly).value();
  std::vector<std::byte> scratch;
  const auto bytes = archive->read({kBlockBytes, kDataBlocks * kBlockBytes}, scratch);
  REQUIRE(bytes);
  const std::string_view seen(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  CHECK(seen == expected.substr(kBlockBytes));
  CHECK(sample.content() == sample.before);
  CHECK(content_of(sample.journal) == journal_before);
}
