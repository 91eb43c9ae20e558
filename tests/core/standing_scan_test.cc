// What becomes of standing journals that are found beside an archive: damaged, cut, torn, old, foreign,
// alive.
#include "core/standing_scan.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/archive.h"
#include "core/memory_file.h"
#include "core/recovery.h"
#include "core/standing_journal.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/lying_storage.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Of the archive: behind a header of one block. The change is of the last two of them.
constexpr std::uint64_t kDataBlocks = 4;
constexpr std::uint64_t kChangedAt = 3 * kBlockBytes;
constexpr std::uint64_t kChangedBytes = 2 * kBlockBytes;

void overwrite(const std::filesystem::path& file, std::uint64_t offset, std::string_view bytes) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw std::runtime_error("overwrite");
}

void flip(const std::filesystem::path& file, std::uint64_t offset) {
  std::ifstream stream(file, std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char flipped = static_cast<char>(stream.get() ^ 0x55);
  overwrite(file, offset, std::string_view(&flipped, 1));
}

/// An archive, and the owner of a standing journal who commits without applying.
class Sample {
 public:
  Sample() {
    std::string header = R"({"t":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]}})";
    header.resize(kBlockBytes - 8, ' ');
    path =
        directory.write("m.safetensors", archive_bytes(header, std::string(kDataBlocks * kBlockBytes, 'o')));
    before = content_of(path);
    owner.emplace(system_storage(), path);
    if (!owner->prepare()) throw std::runtime_error("prepare");
    journal = owner->path();
  }

  /// Over what the archive holds now.
  void commit(char fill) {
    MemoryFile staged;
    const std::string fresh(kChangedBytes, fill);
    const std::string old = content_of(path).substr(kChangedAt, kChangedBytes);
    JournalRecord record;
    const auto archive = system_storage().open(path, Access::ReadOnly).value();
    record.archive = stamp_of(*archive).value();
    record.sequence = next_sequence++;
    record.owner_pid = ::getpid();
    record.ranges = {{.archive = {kChangedAt, kChangedBytes},
                      .journal_offset = kBlockBytes,
                      .new_hashes = {},
                      .old_hashes = {}}};
    append_block_hashes(std::as_bytes(std::span(fresh)), record.ranges[0].new_hashes);
    append_block_hashes(std::as_bytes(std::span(old)), record.ranges[0].old_hashes);
    const bool is_done = staged.write(std::as_bytes(std::span(fresh)), kBlockBytes) &&
                         owner->commit(std::move(record), staged, Durability::Process);
    if (!is_done) throw std::runtime_error("commit");
  }
  /// As the owner would behind his commit.
  void apply(char fill) const { overwrite(path, kChangedAt, std::string(kChangedBytes, fill)); }
  /// One commit, in that lane.
  void commit_in(std::size_t lane, char fill) {
    if (lane == 1) {
      commit('x');
      apply('x');
      before = content_of(path);
    }
    commit(fill);
  }
  void die() { owner.reset(); }

  [[nodiscard]] std::string patched(char fill) const {
    return std::string(before).replace(kChangedAt, kChangedBytes, std::string(kChangedBytes, fill));
  }
  [[nodiscard]] std::string content() const { return content_of(path); }
  [[nodiscard]] bool has_journal() const { return std::filesystem::exists(journal); }

  [[nodiscard]] std::vector<JournalRecord> records() const {
    const auto file = system_storage().open(journal, Access::ReadOnly).value();
    return read_lanes(*file).value();
  }
  Result<std::vector<JournalReport>> recover_all(const RecoveryOptions& options = {},
                                                 Storage& storage = system_storage()) const {
    const auto file = storage.open(path, Access::ReadWrite).value();
    return recover(storage, path, *file, options);
  }
  [[nodiscard]] JournalReport recover_one(const RecoveryOptions& options = {},
                                          Storage& storage = system_storage()) const {
    auto reports = recover_all(options, storage);
    if (!reports) throw std::runtime_error(reports.error().message);
    if (reports->size() != 1) throw std::runtime_error("one journal expected");
    return reports->front();
  }
  [[nodiscard]] Result<Obstacle> obstacle(std::vector<ByteRange> locked,
                                          const std::filesystem::path& own = {}) const {
    const auto file = system_storage().open(path, Access::ReadWrite).value();
    return find_obstacle(system_storage(), path, *file, locked, own);
  }
  /// Nothing is committed beside it, whatever the blocks, and the reason is given.
  [[nodiscard]] bool blocks_commits() const {
    const auto found = obstacle({{kBlockBytes, 1}});
    return !found && found.error().errno_value == EIO &&
           found.error().message.find("stfs recover") != std::string::npos;
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
  std::optional<StandingJournal> owner;
  std::filesystem::path journal;
  std::uint64_t next_sequence = 1;
};

/// Told of each call before it is made.
class Observed final : private Interceptor, public InterceptedStorage {
 public:
  explicit Observed(std::function<void(const SeamCall&)> look)
      : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)), look_(std::move(look)) {}

 private:
  Verdict before(const SeamCall& call) override {
    look_(call);
    return {};
  }
  std::function<void(const SeamCall&)> look_;
};

constexpr std::uint64_t kVersionAt = 8;  // in a head

/// Where a lane's head lies, and its copy.
std::uint64_t head_at(std::size_t lane, bool is_copy) {
  return kStandingHeads.offset + (lane + (is_copy ? kLanes : 0)) * kBlockBytes;
}

/// In the journal, behind a commit of the sample.
std::uint64_t new_bytes_at(std::size_t lane) {
  return lane == 0 ? kStandingHeads.offset - kChangedBytes : kStandingHeads.end();
}

}  // namespace

TEST_CASE("a record is found as long as its head or the copy is sound", "[core][standing_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  // Of the magic, the id, the place of the record, the hashes, the record.
  const std::uint64_t at = GENERATE(0, 8, 13, 28, 36, 44, 52, 128, 150, 200);
  CAPTURE(lane, at);
  Sample sample;
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
      // Perhaps it is no damage, and somebody's commit.
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

TEST_CASE("a dead owner's last commit is applied, and the journal removed", "[core][standing_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  Sample sample;
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

TEST_CASE("a dead owner's journal without a record is removed", "[core][standing_scan]") {
  const bool has_settled = GENERATE(false, true);
  Sample sample;
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

TEST_CASE("no flipped byte of a standing journal makes recovery write anything but the new bytes",
          "[core][standing_scan]") {
  // Each byte of the heads, and some of the lanes; the disk does its syncs elsewhere.
  using enum FileCall;
  LyingStorage storage(
      system_storage(),
      {{Sync, FileRole::Archive}, {Sync, FileRole::Journal}, {SyncDirectory, FileRole::Directory}});
  const std::size_t lane = GENERATE(0, 1);
  const std::uint64_t applied_bytes = GENERATE(std::uint64_t{0}, kBlockBytes, kChangedBytes);
  CAPTURE(lane, applied_bytes);
  Sample sample;
  sample.commit_in(lane, 'n');
  sample.die();
  const std::string intact = content_of(sample.journal);
  const std::string kept = sample.directory / "kept";
  std::filesystem::create_hard_link(sample.journal, kept);
  std::string start = sample.before;
  start.replace(kChangedAt, applied_bytes, std::string(applied_bytes, 'n'));

  std::size_t applied = 0;
  std::size_t dropped = 0;
  std::size_t left_alone = 0;
  const auto check = [&](std::uint64_t at) {
    std::string damaged = intact;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    // Recovery changes nothing but the heads and the name.
    overwrite(kept, kStandingHeads.offset,
              std::string_view(damaged).substr(kStandingHeads.offset, kStandingHeads.size_bytes));
    overwrite(kept, at, std::string_view(damaged).substr(at, 1));
    if (!sample.has_journal()) std::filesystem::create_hard_link(kept, sample.journal);
    overwrite(sample.path, kChangedAt, std::string_view(start).substr(kChangedAt, kChangedBytes));
    const JournalReport report = sample.recover_one({}, storage);
    const std::string after = sample.content();
    const bool is_in_use = at >= new_bytes_at(lane) && at < new_bytes_at(lane) + kChangedBytes;
    bool is_right = false;
    if (report.action == JournalAction::Applied) {
      ++applied;
      is_right = !is_in_use && after == sample.patched('n') && !sample.has_journal();
    } else if (report.action == JournalAction::Removed) {
      // It looks as if its sync had never been done, and then the archive was never touched.
      ++dropped;
      is_right =
          is_in_use && applied_bytes == 0 && after == start && report.state == JournalState::Unfinished;
    } else {
      ++left_alone;
      is_right = is_in_use && applied_bytes != 0 && after == start && report.state == JournalState::Damaged &&
                 report.blocks_commits && content_of(sample.journal) == damaged;
    }
    if (!is_right) FAIL("byte " << at << ": " << name_of(report.state) << ", " << report.explanation);
    overwrite(kept, at, std::string_view(intact).substr(at, 1));
  };
  // All of them once, and some for the states in between.
  const std::uint64_t step = applied_bytes == kBlockBytes ? 1 : 41;
  for (std::uint64_t at = kStandingHeads.offset; at < kStandingHeads.end(); at += step) check(at);
  for (std::uint64_t at = 0; at < kStandingBytes; at += 509) {
    if (at < kStandingHeads.offset || at >= kStandingHeads.end()) check(at);
  }
  CHECK(applied > kStandingHeads.size_bytes / step);
  CHECK((applied_bytes == 0 ? dropped : left_alone) >= kChangedBytes / 509);
  CHECK((applied_bytes == 0 ? left_alone : dropped) == 0);
}

TEST_CASE("a standing journal that was cut or has grown is damaged: never applied nor removed",
          "[core][standing_scan]") {
  const std::uint64_t size_bytes =
      GENERATE(std::uint64_t{0}, 1, 100, kBlockBytes, kStandingHeads.offset, kStandingHeads.end(),
               kStandingBytes - 1, kStandingBytes + 1, kStandingBytes + kBlockBytes, 1 << 20);
  const bool is_alive = GENERATE(false, true);
  CAPTURE(size_bytes, is_alive);
  Sample sample;
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
          "[core][standing_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  const std::uint64_t torn_at = GENERATE(std::uint64_t{0}, 5000);
  Sample sample;
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
          "[core][standing_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  // The first block of two has got there, or a part of it, or both.
  const std::uint64_t applied_bytes = GENERATE(std::uint64_t{512}, kBlockBytes, kChangedBytes);
  Sample sample;
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

TEST_CASE("of two lanes with a record the later commit counts", "[core][standing_scan]") {
  const std::size_t later_lane = GENERATE(0, 1);
  Sample sample;
  if (later_lane == 0) {
    sample.commit('x');
    sample.apply('x');
  }
  sample.commit('1');
  sample.apply('1');
  const std::string first = content_of(sample.journal);
  sample.commit('2');
  sample.die();
  // As if the sync had brought the later lane's head to the disk, and not the zeros over the earlier one's.
  for (const bool is_copy : {false, true}) {
    const std::uint64_t at = head_at(1 - later_lane, is_copy);
    overwrite(sample.journal, at, std::string_view(first).substr(at, kBlockBytes));
  }
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

TEST_CASE("while two lanes are recovered the earlier one is never left alone", "[core][standing_scan]") {
  Sample sample;
  sample.commit('1');
  sample.apply('1');
  const std::string first = content_of(sample.journal);
  sample.commit('2');
  sample.die();
  for (const bool is_copy : {false, true}) {
    overwrite(sample.journal, head_at(0, is_copy),
              std::string_view(first).substr(head_at(0, is_copy), kBlockBytes));
  }
  REQUIRE(sample.records().size() == 2);
  // A loss of power while both are made void may keep any of their blocks: then the earlier one must be so on
  // the disk already.
  bool is_synced = false;
  int writes = 0;
  Observed storage([&](const SeamCall& call) {
    if (call.role == FileRole::Journal && call.kind == FileCall::Sync) {
      is_synced = sample.records().size() == 1;
    } else if (call.role == FileRole::Archive && call.kind == FileCall::Write) {
      ++writes;
      CHECK(is_synced);
      REQUIRE(sample.records().size() == 1);
      CHECK(sample.records()[0].sequence == 2);
    }
  });
  CHECK(sample.recover_one({}, storage).action == JournalAction::Applied);
  CHECK(writes > 0);
  CHECK(sample.content() == sample.patched('2'));
}

TEST_CASE("a standing journal of another archive is foreign: neither applied nor removed",
          "[core][standing_scan]") {
  Sample sample;
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
          "[core][standing_scan]") {
  Sample sample;
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
          "[core][standing_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  Sample sample;
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
  const std::string_view seen(reinterpret_cast<const char*>(bytes->data()), bytes->size());  // NOLINT
  CHECK(seen == expected.substr(kBlockBytes));
  CHECK(sample.content() == sample.before);
  CHECK(content_of(sample.journal) == journal_before);
}

TEST_CASE("recovery of a standing journal that fails at any call is finished by the next",
          "[core][standing_scan]") {
  const std::size_t lane = GENERATE(0, 1);
  const bool is_for_good = GENERATE(false, true);
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth, lane, is_for_good);
    Sample sample;
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
