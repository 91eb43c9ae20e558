// Tests a lane journal, which stays between small commits: it is made once, used for commits, settled and
// removed.
#include "core/journal/lane_journal.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/exchanged_name.h"
#include "tests/core/journaled_archive.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a prepared lane journal is one void file of its full size, its owner's alone",
          "[core][lane_journal]") {
  WatchedStorage storage;
  JournaledArchive sample(storage);
  CHECK_FALSE(sample.lane_journal->is_ready());
  CHECK(sample.lane_journal->path().empty());
  sample.prepare();
  CHECK(sample.lane_journal->is_ready());
  CHECK(sample.lane_journal->is_settled());
  CHECK(sample.journals() == 1);
  const std::string name = sample.file.filename().string();
  const std::string prefix = ".m.safetensors.stj.";
  CHECK(name.starts_with(prefix));
  CHECK(name.ends_with(".standing"));
  CHECK(name.size() == prefix.size() + 32 + std::string_view(".standing").size());
  CHECK(sample.file.parent_path() == std::filesystem::path(sample.path).parent_path());
  struct stat st {};
  REQUIRE(::stat(sample.file.c_str(), &st) == 0);
  // The journal has the archive's mode, so that a user who may write the archive may settle the journal.
  struct stat archive {};
  REQUIRE(::stat(sample.path.c_str(), &archive) == 0);
  CHECK((st.st_mode & 07777) == ((archive.st_mode & 0666) | 0600));
  CHECK(static_cast<std::uint64_t>(st.st_size) == kLaneJournalBytes);
  CHECK(content_of(sample.file) == std::string(kLaneJournalBytes, '\0'));
  CHECK_FALSE(sample.is_free());
  // The bytes are durable before the name exists, and then the name is made durable.
  const auto synced = std::ranges::find(storage.calls, FileCall::Sync);
  const auto named = std::ranges::find(storage.calls, FileCall::Publish);
  const auto settled = std::ranges::find(storage.calls, FileCall::SyncDirectory);
  CHECK(synced < named);
  CHECK(named < settled);
  CHECK(settled != storage.calls.end());
  // The journal exists already, so nothing is done.
  storage.calls.clear();
  REQUIRE(sample.lane_journal->prepare());
  CHECK(storage.calls.empty());
  CHECK(sample.lane_journal->path() == sample.file);
}

TEST_CASE("commits take the lanes in turn, and each leaves exactly one sound record: its own",
          "[core][lane_journal]") {
  WatchedStorage storage;
  JournaledArchive sample(storage);
  sample.prepare();
  std::size_t last_lane = 1;
  for (char fill = '1'; fill <= '7'; ++fill) {
    CAPTURE(fill);
    storage.calls.clear();
    REQUIRE(sample.commit_block(fill));
    // The status call is for the archive, whose mode may have changed.
    CHECK(storage.calls == std::vector<FileCall>{FileCall::Status, FileCall::Write, FileCall::Sync});
    CHECK_FALSE(sample.lane_journal->is_settled());
    const auto records = sample.records();
    REQUIRE(records.size() == 1);
    CHECK(records[0].sequence == sample.sequence);
    CHECK(lane_of(records[0]) == 1 - last_lane);
    last_lane = lane_of(records[0]);
    REQUIRE(records[0].ranges.size() == 1);
    CHECK(records[0].ranges[0].archive == ByteRange{kBlockBytes, kBlockBytes});
    CHECK(content_of(sample.file).substr(records[0].ranges[0].journal_offset, kBlockBytes) ==
          std::string(kBlockBytes, fill));
    CHECK(sample.file.string().find(records[0].id.text()) != std::string::npos);
    // Some rounds settle the journal, others do not.
    if (fill % 3 == 0) REQUIRE(sample.lane_journal->settle(Durability::Power));
  }
  CHECK(std::filesystem::file_size(sample.file) == kLaneJournalBytes);
  CHECK(sample.journals() == 1);
  CHECK(content_of(sample.path) == sample.before);
}

TEST_CASE("a lane journal follows the mode of the archive before its next commit", "[core][lane_journal]") {
  JournaledArchive sample;
  const auto mode_of = [](const std::filesystem::path& path) {
    struct stat st {};
    REQUIRE(::stat(path.c_str(), &st) == 0);
    return st.st_mode & 07777U;
  };
  REQUIRE(::chmod(sample.path.c_str(), 0664) == 0);
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  CHECK(mode_of(sample.file) == 0664);
  REQUIRE(::chmod(sample.path.c_str(), 0600) == 0);
  REQUIRE(sample.commit_block('2'));
  CHECK(mode_of(sample.file) == 0600);
  CHECK(sample.records().size() == 1);
}

TEST_CASE("a lane journal has the access of the open archive, whatever file has its name",
          "[core][lane_journal]") {
  JournaledArchive sample;
  const auto access = [&] {
    const FileStatus journal = system_storage().status(sample.file).value();
    return std::pair(journal.mode & 07777U, journal.uid);
  };
  const std::pair<std::uint32_t, std::uint32_t> of_archive = {0600, ::geteuid()};
  REQUIRE(::chmod(sample.path.c_str(), 0600) == 0);
  const ExchangedName exchanged(sample.path);
  sample.prepare();
  CHECK(access() == of_archive);
  REQUIRE(sample.commit_block('1'));
  CHECK(access() == of_archive);
}

TEST_CASE("a settled lane journal is void and takes the next commit", "[core][lane_journal]") {
  const auto durability = GENERATE(Durability::Power, Durability::Process);
  WatchedStorage storage;
  JournaledArchive sample(storage);
  sample.prepare();
  storage.calls.clear();
  REQUIRE(sample.lane_journal->settle(durability));
  CHECK(storage.calls.empty());  // there was nothing to settle
  REQUIRE(sample.commit_block('1', durability));
  storage.calls.clear();
  REQUIRE(sample.lane_journal->settle(durability));
  CHECK(storage.count(FileCall::Write) == 1);
  CHECK(storage.count(FileCall::Sync) == (durability == Durability::Power ? 1 : 0));
  CHECK(sample.lane_journal->is_settled());
  CHECK(sample.lane_journal->is_ready());
  CHECK(sample.records().empty());
  CHECK(content_of(sample.file).substr(kLaneHeads.offset, kLaneHeads.size_bytes) ==
        std::string(kLaneHeads.size_bytes, '\0'));
  CHECK_FALSE(sample.is_free());
  REQUIRE(sample.commit_block('2', durability));
  CHECK(sample.records().size() == 1);
}

TEST_CASE("a retired lane journal is void and gone", "[core][lane_journal]") {
  JournaledArchive sample;
  REQUIRE(sample.lane_journal->retire(Durability::Power));  // there is none yet
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  CHECK(sample.records().size() == 1);
  REQUIRE(sample.lane_journal->retire(Durability::Power));
  CHECK(sample.journals() == 0);
  CHECK(sample.records().empty());  // if its name came back, nothing would be under it
  CHECK(sample.is_free());
  CHECK_FALSE(sample.lane_journal->is_ready());
  CHECK(sample.lane_journal->is_settled());
  CHECK(sample.lane_journal->path().empty());
  REQUIRE(sample.lane_journal->retire(Durability::Power));
  REQUIRE(sample.lane_journal->prepare());  // as good as new
  CHECK(sample.journals() == 1);
}

TEST_CASE("a lane journal given up stays, with its record, for whoever can recover it",
          "[core][lane_journal]") {
  JournaledArchive sample;
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  CHECK_FALSE(sample.is_free());
  sample.lane_journal->give_up();
  CHECK(sample.is_free());
  CHECK(sample.is_named());
  CHECK(sample.records().size() == 1);
  CHECK_FALSE(sample.lane_journal->is_ready());
  CHECK(sample.lane_journal->is_settled());
  CHECK(sample.lane_journal->path().empty());
  CHECK(sample.recovered() == sample.patched('1'));
  CHECK(sample.journals() == 0);
}

TEST_CASE("a change of up to as many blocks as a lane has is committed whole", "[core][lane_journal]") {
  const bool is_second = GENERATE(false, true);
  JournaledArchive sample;
  sample.prepare();
  if (is_second) REQUIRE(sample.commit_block('x'));
  std::vector<std::pair<std::uint64_t, std::string>> changes;
  const std::uint64_t whole_blocks = GENERATE(14U, 15U);
  CAPTURE(is_second, whole_blocks);
  for (std::uint64_t block = 1; block <= whole_blocks; ++block) {
    changes.emplace_back((block < 8 ? block : block + 2) * kBlockBytes,
                         std::string(kBlockBytes, static_cast<char>('a' + block)));
  }
  changes.emplace_back(21 * kBlockBytes, std::string(100, 'z'));  // the archive's last block is a part of one
  REQUIRE(changes.size() <= kLaneBlocks);
  REQUIRE(sample.commit(changes));
  std::string expected = sample.before;
  for (const auto& [offset, bytes] : changes) expected.replace(offset, bytes.size(), bytes);
  CHECK(sample.records().size() == 1);
  CHECK((sample.recovered() == expected));
}

TEST_CASE("a change of more blocks than a lane has is refused, without harm", "[core][lane_journal]") {
  WatchedStorage storage;
  JournaledArchive sample(storage);
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  const std::string there = content_of(sample.file);
  storage.calls.clear();
  const auto committed = sample.commit({{kBlockBytes, std::string((kLaneBlocks + 1) * kBlockBytes, 'n')}});
  REQUIRE_FALSE(committed);
  CHECK(committed.error().errno_value == EINVAL);
  CHECK(storage.calls.empty());
  CHECK(content_of(sample.file) == there);
  CHECK(sample.lane_journal->is_ready());
  CHECK_FALSE(sample.lane_journal->is_settled());
  REQUIRE(sample.commit_block('2'));
  REQUIRE(sample.records().size() == 1);
  CHECK(lane_of(sample.records()[0]) == 1);
}

TEST_CASE("where only a killed process is to be survived, a commit makes no sync", "[core][lane_journal]") {
  WatchedStorage storage;
  JournaledArchive sample(storage);
  sample.prepare();
  storage.calls.clear();
  for (const char fill : {'1', '2', '3'}) REQUIRE(sample.commit_block(fill, Durability::Process));
  REQUIRE(sample.records().size() == 1);
  REQUIRE(sample.lane_journal->retire(Durability::Process));
  CHECK(storage.count(FileCall::Sync) == 0);
  CHECK(storage.count(FileCall::SyncDirectory) == 0);
  CHECK(sample.records().empty());
  CHECK(sample.journals() == 0);
}

TEST_CASE("a lane journal is wanted from the second small commit on, while there is none",
          "[core][lane_journal]") {
  JournaledArchive sample;
  CHECK_FALSE(sample.lane_journal->is_wanted());
  sample.lane_journal->note_small_commit();
  CHECK_FALSE(sample.lane_journal->is_wanted());
  sample.lane_journal->note_small_commit();
  CHECK(sample.lane_journal->is_wanted());
  sample.prepare();
  CHECK_FALSE(sample.lane_journal->is_wanted());
  REQUIRE(sample.lane_journal->retire(Durability::Power));
  CHECK(sample.lane_journal->is_wanted());
}
