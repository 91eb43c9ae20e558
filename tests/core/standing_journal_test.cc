// The journal that stays between small commits: made once, committed through, settled, removed.
#include "core/standing_journal.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/memory_file.h"
#include "core/recovery.h"
#include "core/standing_scan.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Counts the calls, and fails the kinds that it is told to, for good.
class Counted final : private Interceptor, public InterceptedStorage {
 public:
  Counted() : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)) {}
  std::set<FileCall> failing;
  int errno_value = EIO;
  std::vector<FileCall> calls;

  [[nodiscard]] std::ptrdiff_t count(FileCall kind) const { return std::ranges::count(calls, kind); }

 private:
  Verdict before(const SeamCall& call) override {
    calls.push_back(call.kind);
    if (!failing.contains(call.kind)) return {};
    return {.kind = Verdict::Kind::Fail, .errno_value = errno_value};
  }
};

/// One tensor over 20 blocks and a bit, behind a header of exactly one.
class Sample {
 public:
  explicit Sample(Storage& storage = system_storage()) {
    const std::string data(20 * kBlockBytes + 100, 'o');
    std::string header = R"({"t":{"dtype":"U8","shape":[82020],"data_offsets":[0,82020]}})";
    header.resize(kBlockBytes - 8, ' ');
    path = directory.write("m.safetensors", archive_bytes(header, data));
    before = content_of(path);
    standing.emplace(storage, path);
  }

  void prepare() {
    const auto prepared = standing->prepare();
    if (!prepared) throw std::runtime_error(prepared.error().message);
    file = standing->path();
    std::filesystem::create_hard_link(file, kept());
  }
  /// A commit of these bytes at those offsets, each a multiple of 4096. The archive is not changed.
  Result<void> commit(const std::vector<std::pair<std::uint64_t, std::string>>& changes,
                      Durability durability = Durability::Power) {
    MemoryFile staged;
    JournalRecord record;
    const auto archive = system_storage().open(path, Access::ReadOnly).value();
    record.archive = stamp_of(*archive).value();
    record.sequence = ++sequence;
    std::uint64_t at = kBlockBytes;
    for (const auto& [offset, bytes] : changes) {
      JournalRange range{
          .archive = {offset, bytes.size()}, .journal_offset = at, .new_hashes = {}, .old_hashes = {}};
      append_block_hashes(std::as_bytes(std::span(bytes)), range.new_hashes);
      append_block_hashes(std::as_bytes(std::span(before).subspan(offset, bytes.size())), range.old_hashes);
      if (auto written = staged.write(std::as_bytes(std::span(bytes)), at); !written) return written;
      record.ranges.push_back(std::move(range));
      at += round_up_to_block(bytes.size());
    }
    return standing->commit(std::move(record), staged, durability);
  }
  Result<void> commit_block(char fill, Durability durability = Durability::Power) {
    return commit({{kBlockBytes, std::string(kBlockBytes, fill)}}, durability);
  }

  /// The bytes of the journal's file, even where its name has gone.
  [[nodiscard]] std::string kept() const { return directory / "kept"; }
  /// The records that somebody else finds in it.
  [[nodiscard]] std::vector<JournalRecord> records() const {
    const auto opened = system_storage().open(kept(), Access::ReadOnly).value();
    return read_lanes(*opened).value();
  }
  /// Nobody who looks takes its owner for a living one.
  [[nodiscard]] bool is_free() const {
    const auto opened = system_storage().open(kept(), Access::ReadWrite).value();
    return !opened->try_lock({0, 1}, LockKind::Exclusive)->has_value();
  }
  [[nodiscard]] bool is_named() const { return std::filesystem::exists(file); }
  /// What is beside the archive, the link that a test keeps left out.
  [[nodiscard]] std::ptrdiff_t journals() const {
    const std::ptrdiff_t all = std::distance(std::filesystem::directory_iterator(directory.path()), {});
    return all - 1 - (std::filesystem::exists(kept()) ? 1 : 0);
  }
  /// The archive after the owner's death and a recovery.
  [[nodiscard]] std::string recovered() {
    standing.reset();
    const auto archive = system_storage().open(path, Access::ReadWrite).value();
    if (auto done = recover(system_storage(), path, *archive); !done)
      throw std::runtime_error(done.error().message);
    return content_of(path);
  }
  [[nodiscard]] std::string patched(char fill) const {
    return std::string(before).replace(kBlockBytes, kBlockBytes, std::string(kBlockBytes, fill));
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
  std::filesystem::path file;
  std::optional<StandingJournal> standing;
  std::uint64_t sequence = 0;
};

}  // namespace

TEST_CASE("a prepared standing journal is one void file of its full size, its owner's alone",
          "[core][standing_journal]") {
  Counted storage;
  Sample sample(storage);
  CHECK_FALSE(sample.standing->is_ready());
  CHECK(sample.standing->path().empty());
  sample.prepare();
  CHECK(sample.standing->is_ready());
  CHECK(sample.standing->is_settled());
  CHECK(sample.journals() == 1);
  const std::string name = sample.file.filename().string();
  const std::string prefix = ".m.safetensors.stj.";
  CHECK(name.starts_with(prefix));
  CHECK(name.ends_with(".standing"));
  CHECK(name.size() == prefix.size() + 32 + std::string_view(".standing").size());
  CHECK(sample.file.parent_path() == std::filesystem::path(sample.path).parent_path());
  struct stat st {};
  REQUIRE(::stat(sample.file.c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0600);
  CHECK(static_cast<std::uint64_t>(st.st_size) == kStandingBytes);
  CHECK(content_of(sample.file) == std::string(kStandingBytes, '\0'));
  CHECK_FALSE(sample.is_free());
  // Durable, bytes and name, and in that order.
  const auto synced = std::ranges::find(storage.calls, FileCall::Sync);
  const auto named = std::ranges::find(storage.calls, FileCall::Publish);
  const auto settled = std::ranges::find(storage.calls, FileCall::SyncDirectory);
  CHECK(synced < named);
  CHECK(named < settled);
  CHECK(settled != storage.calls.end());
  // There is one already.
  storage.calls.clear();
  REQUIRE(sample.standing->prepare());
  CHECK(storage.calls.empty());
  CHECK(sample.standing->path() == sample.file);
}

TEST_CASE("commits take the lanes in turn, and each leaves exactly one sound record: its own",
          "[core][standing_journal]") {
  Counted storage;
  Sample sample(storage);
  sample.prepare();
  std::size_t last_lane = 1;
  for (char fill = '1'; fill <= '7'; ++fill) {
    CAPTURE(fill);
    storage.calls.clear();
    REQUIRE(sample.commit_block(fill));
    CHECK(storage.calls == std::vector<FileCall>{FileCall::Write, FileCall::Sync});
    CHECK_FALSE(sample.standing->is_settled());
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
    // Here a settlement comes between, or not.
    if (fill % 3 == 0) REQUIRE(sample.standing->settle(Durability::Power));
  }
  CHECK(std::filesystem::file_size(sample.file) == kStandingBytes);
  CHECK(sample.journals() == 1);
  CHECK(content_of(sample.path) == sample.before);
}

TEST_CASE("a settled standing journal is void and takes the next commit", "[core][standing_journal]") {
  const auto durability = GENERATE(Durability::Power, Durability::Process);
  Counted storage;
  Sample sample(storage);
  sample.prepare();
  storage.calls.clear();
  REQUIRE(sample.standing->settle(durability));
  CHECK(storage.calls.empty());  // there was nothing to settle
  REQUIRE(sample.commit_block('1', durability));
  storage.calls.clear();
  REQUIRE(sample.standing->settle(durability));
  CHECK(storage.count(FileCall::Write) == 1);
  CHECK(storage.count(FileCall::Sync) == (durability == Durability::Power ? 1 : 0));
  CHECK(sample.standing->is_settled());
  CHECK(sample.standing->is_ready());
  CHECK(sample.records().empty());
  CHECK(content_of(sample.file).substr(kStandingHeads.offset, kStandingHeads.size_bytes) ==
        std::string(kStandingHeads.size_bytes, '\0'));
  CHECK_FALSE(sample.is_free());
  REQUIRE(sample.commit_block('2', durability));
  CHECK(sample.records().size() == 1);
}

TEST_CASE("a retired standing journal is void and gone", "[core][standing_journal]") {
  Sample sample;
  REQUIRE(sample.standing->retire(Durability::Power));  // there is none yet
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  CHECK(sample.records().size() == 1);
  REQUIRE(sample.standing->retire(Durability::Power));
  CHECK(sample.journals() == 0);
  CHECK(sample.records().empty());  // if its name came back, nothing would be under it
  CHECK(sample.is_free());
  CHECK_FALSE(sample.standing->is_ready());
  CHECK(sample.standing->is_settled());
  CHECK(sample.standing->path().empty());
  REQUIRE(sample.standing->retire(Durability::Power));
  REQUIRE(sample.standing->prepare());  // as good as new
  CHECK(sample.journals() == 1);
}

TEST_CASE("a standing journal given up stays, with its record, for whoever can recover it",
          "[core][standing_journal]") {
  Sample sample;
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  CHECK_FALSE(sample.is_free());
  sample.standing->give_up();
  CHECK(sample.is_free());
  CHECK(sample.is_named());
  CHECK(sample.records().size() == 1);
  CHECK_FALSE(sample.standing->is_ready());
  CHECK(sample.standing->is_settled());
  CHECK(sample.standing->path().empty());
  CHECK(sample.recovered() == sample.patched('1'));
  CHECK(sample.journals() == 0);
}

TEST_CASE("a change of up to as many blocks as a lane has is committed whole", "[core][standing_journal]") {
  const bool is_second = GENERATE(false, true);
  Sample sample;
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

TEST_CASE("a change of more blocks than a lane has is refused, without harm", "[core][standing_journal]") {
  Counted storage;
  Sample sample(storage);
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  const std::string there = content_of(sample.file);
  storage.calls.clear();
  const auto committed = sample.commit({{kBlockBytes, std::string((kLaneBlocks + 1) * kBlockBytes, 'n')}});
  REQUIRE_FALSE(committed);
  CHECK(committed.error().errno_value == EINVAL);
  CHECK(storage.calls.empty());
  CHECK(content_of(sample.file) == there);
  CHECK(sample.standing->is_ready());
  CHECK_FALSE(sample.standing->is_settled());
  REQUIRE(sample.commit_block('2'));
  REQUIRE(sample.records().size() == 1);
  CHECK(lane_of(sample.records()[0]) == 1);
}

TEST_CASE("where only a killed process is to be survived, a commit makes no sync",
          "[core][standing_journal]") {
  Counted storage;
  Sample sample(storage);
  sample.prepare();
  storage.calls.clear();
  for (const char fill : {'1', '2', '3'}) REQUIRE(sample.commit_block(fill, Durability::Process));
  REQUIRE(sample.records().size() == 1);
  REQUIRE(sample.standing->retire(Durability::Process));
  CHECK(storage.count(FileCall::Sync) == 0);
  CHECK(storage.count(FileCall::SyncDirectory) == 0);
  CHECK(sample.records().empty());
  CHECK(sample.journals() == 0);
}

TEST_CASE("a commit that fails is taken back: void, or gone for good, else nobody knows",
          "[core][standing_journal]") {
  struct Case {
    std::set<FileCall> failing;  // for good
    bool is_known;
    bool is_named;
  };
  const auto [failing, is_known, is_named] =
      GENERATE(Case{{FileCall::Write}, true, false},                    //
               Case{{FileCall::Sync}, true, false},                     //
               Case{{FileCall::Write, FileCall::Remove}, false, true},  //
               Case{{FileCall::Sync, FileCall::Remove}, false, true},   //
               Case{{FileCall::Write, FileCall::SyncDirectory}, false, false},
               Case{{FileCall::Sync, FileCall::SyncDirectory}, false, false});
  const bool has_earlier = GENERATE(false, true);
  CAPTURE(is_known, is_named, has_earlier);
  Counted storage;
  Sample sample(storage);
  sample.prepare();
  if (has_earlier) REQUIRE(sample.commit_block('1'));
  storage.failing = failing;
  const auto committed = sample.commit_block('2');
  REQUIRE_FALSE(committed);
  CHECK(committed.error().errno_value == EIO);
  CHECK((committed.error().code != ErrorCode::CommitUnknown) == is_known);
  CHECK(sample.is_named() == is_named);
  CHECK_FALSE(sample.standing->is_ready());
  CHECK(sample.standing->is_settled());
  CHECK(sample.is_free());
  CHECK(content_of(sample.path) == sample.before);
}

TEST_CASE("a commit that failed once leaves no record under any name", "[core][standing_journal]") {
  const auto call = GENERATE(FileCall::Write, FileCall::Sync);
  const bool is_torn = GENERATE(false, true);
  const int earlier = GENERATE(0, 1, 2);
  CAPTURE(call, is_torn, earlier);
  FaultyStorage storage;
  Sample sample(storage);
  sample.prepare();
  for (int at = 0; at < earlier; ++at) REQUIRE(sample.commit_block('1'));
  storage.plan().fail_call(call, 1, ENOSPC);
  if (is_torn) storage.plan().tear_writes();
  const auto committed = sample.commit_block('2');
  REQUIRE_FALSE(committed);
  CHECK(committed.error().errno_value == ENOSPC);
  CHECK(committed.error().code != ErrorCode::CommitUnknown);
  CHECK(sample.records().empty());
  CHECK(sample.journals() == 0);
  // Another one takes its place.
  REQUIRE(sample.standing->prepare());
  REQUIRE(sample.commit_block('3'));
  CHECK(sample.recovered() == sample.patched('3'));
}

TEST_CASE("a commit that fails at any call is the old content or, where nobody knows, the old or the new",
          "[core][standing_journal]") {
  const bool is_for_good = GENERATE(false, true);
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth, is_for_good);
    FaultyStorage storage;
    Sample sample(storage);
    sample.prepare();
    storage.plan().set({.nth = nth, .errno_value = EIO, .kind = {}, .is_for_good = is_for_good});
    const auto committed = sample.commit_block('1');
    const bool has_failed = storage.plan().failed().has_value();
    storage.plan().fail_call(0, 0);
    CHECK(committed.has_value() != has_failed);
    const std::string after = sample.recovered();
    if (committed) {
      CHECK(after == sample.patched('1'));
      break;
    }
    const bool may_be_there = committed.error().code == ErrorCode::CommitUnknown;
    CHECK((after == sample.before || (may_be_there && after == sample.patched('1'))));
  }
}

TEST_CASE("a settlement that fails gives the journal up, and what stays is no other change",
          "[core][standing_journal]") {
  const bool is_for_good = GENERATE(false, true);
  const auto kind = GENERATE(FileCall::Write, FileCall::Sync);
  FaultyStorage storage;
  Sample sample(storage);
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  storage.plan().set({.nth = 1, .errno_value = EIO, .kind = kind, .is_for_good = is_for_good});
  const auto settled = sample.standing->settle(Durability::Power);
  REQUIRE_FALSE(settled);
  CHECK(settled.error().errno_value == EIO);
  CHECK_FALSE(sample.standing->is_ready());
  CHECK(sample.is_free());
  CHECK(sample.journals() == 0);
}

TEST_CASE("a standing journal that can't be made leaves nothing behind", "[core][standing_journal]") {
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth);
    FaultyStorage storage;
    Sample sample(storage);
    storage.plan().fail_call(nth, ENOSPC);
    const auto prepared = sample.standing->prepare();
    const bool has_failed = storage.plan().failed().has_value();
    CHECK(prepared.has_value() != has_failed);
    CHECK(sample.standing->is_ready() != has_failed);
    CHECK(sample.journals() == (has_failed ? 0 : 1));
    CHECK(sample.standing->path().empty() == has_failed);
    storage.plan().fail_call(0, 0);
    REQUIRE(sample.standing->prepare());  // the next attempt is free of it
    CHECK(sample.journals() == 1);
    if (!has_failed) break;
  }
}

TEST_CASE("where the file system has no locks no standing journal is made", "[core][standing_journal]") {
  Counted storage;
  storage.failing = {FileCall::Lock};
  storage.errno_value = GENERATE(ENOLCK, ENOSYS, EOPNOTSUPP);
  Sample sample(storage);
  sample.standing->note_small_commit();
  sample.standing->note_small_commit();
  CHECK(sample.standing->is_wanted());
  REQUIRE(sample.standing->prepare());
  CHECK_FALSE(sample.standing->is_ready());
  CHECK_FALSE(sample.standing->is_wanted());
  CHECK(sample.journals() == 0);
  storage.calls.clear();
  REQUIRE(sample.standing->prepare());
  CHECK(storage.calls.empty());  // it is known now
  REQUIRE(sample.standing->retire(Durability::Power));
}

TEST_CASE("a lock that fails otherwise is an error, and no file is made", "[core][standing_journal]") {
  Counted storage;
  storage.failing = {FileCall::Lock};
  Sample sample(storage);
  const auto prepared = sample.standing->prepare();
  REQUIRE_FALSE(prepared);
  CHECK(prepared.error().errno_value == EIO);
  CHECK(sample.journals() == 0);
}

TEST_CASE("a standing journal is wanted from the second small commit on, while there is none",
          "[core][standing_journal]") {
  Sample sample;
  CHECK_FALSE(sample.standing->is_wanted());
  sample.standing->note_small_commit();
  CHECK_FALSE(sample.standing->is_wanted());
  sample.standing->note_small_commit();
  CHECK(sample.standing->is_wanted());
  sample.prepare();
  CHECK_FALSE(sample.standing->is_wanted());
  REQUIRE(sample.standing->retire(Durability::Power));
  CHECK(sample.standing->is_wanted());
}
