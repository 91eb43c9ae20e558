// A commit that runs while a large one of the same archive lends its turn.
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/commit/transaction.h"
#include "core/storage/writeback.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/planted_journal.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

// The tensor "large" has 20 blocks, the last one in part. "small" begins two blocks behind them.
constexpr std::uint64_t kPatchedBytes = 80'000;
constexpr std::uint64_t kSmallAt = 90'112;
constexpr std::uint64_t kSmallBytes = 5000;

std::string header_of_two() {
  std::string header = R"({"large":{"dtype":"U8","shape":[80000],"data_offsets":[0,80000]},)"
                       R"("between":{"dtype":"U8","shape":[10112],"data_offsets":[80000,90112]},)"
                       R"("small":{"dtype":"U8","shape":[5000],"data_offsets":[90112,95112]}})";
  header.resize(4096 - 8, ' ');
  return header;
}

enum class Lent : std::uint8_t { Sealing, Syncing, Applying };

struct TwoCommits {
  explicit TwoCommits(Storage& storage = system_storage())
      : path(directory.write("m.safetensors",
                             archive_bytes(header_of_two(), std::string(kSmallAt + kSmallBytes, 'o')))),
        archive(Archive::open(path, Access::ReadWrite, storage).value()) {
    options.lock_patience = std::chrono::milliseconds(0);
  }

  void stage(Transaction& transaction, std::string_view name, char byte, std::uint64_t size_bytes) const {
    const std::string bytes(size_bytes, byte);
    const auto stage = transaction.stage(*archive->version()->find(name)).value();
    if (!stage->write(std::as_bytes(std::span(bytes)), 0)) throw std::runtime_error("write");
  }
  Result<void> commit_small(char byte, bool is_beside = true) {
    Transaction transaction(*archive);
    stage(transaction, "small", byte, kSmallBytes);
    CommitOptions beside = options;
    beside.is_beside = is_beside;
    return transaction.commit(beside, [this](TensorId) -> ReaderWriterLock& { return small_readers; });
  }
  /// Commits the large tensor, and calls `inner` at each moment of this kind.
  Result<void> commit_large(char byte, Lent when, const std::function<void()>& inner) {
    Transaction transaction(*archive);
    stage(transaction, "large", byte, kPatchedBytes);
    CommitOptions lending = options;
    lending.lend_turn = [&](const std::function<void()>& work) {
      const Lent now = !archive->overlay().is_empty() ? Lent::Applying : work ? Lent::Syncing : Lent::Sealing;
      if (now == when) inner();
      lent += now == when ? 1 : 0;
      if (work) work();
      return now == when;
    };
    return transaction.commit(lending, [this](TensorId) -> ReaderWriterLock& { return large_readers; });
  }
  [[nodiscard]] std::string read(std::string_view name) const {
    const ByteRange range = archive->version()->file_range(*archive->version()->find(name));
    std::vector<std::byte> scratch;
    const auto read = archive->read(range, scratch);
    if (!read) return read.error().message;
    return {reinterpret_cast<const char*>(read->data()), read->size()};
  }
  [[nodiscard]] std::string content() const { return content_of(path).substr(4096); }
  [[nodiscard]] static std::string content_with(char large, char small) {
    return std::string(kPatchedBytes, large) + std::string(kSmallAt - kPatchedBytes, 'o') +
           std::string(kSmallBytes, small);
  }
  /// Whether another process sees a lock on this range.
  [[nodiscard]] bool is_locked(ByteRange range, LockKind kind) const {
    return *system_storage().open(path, Access::ReadWrite).value()->is_locked_by_other(range, kind);
  }
  [[nodiscard]] bool may_be_edited() const {
    return !is_locked({std::uint64_t{1} << 62U, 1}, LockKind::Exclusive);
  }

  TemporaryDirectory directory;
  std::string path;
  std::unique_ptr<Archive> archive;
  ReaderWriterLock large_readers;
  ReaderWriterLock small_readers;
  CommitOptions options;
  int lent = 0;
};

const std::string kLargeOld(kPatchedBytes, 'o');
const std::string kLargeNew(kPatchedBytes, 'L');

}  // namespace

TEST_CASE("another commit runs whole while a large one lends its turn", "[core][transaction][beside]") {
  TwoCommits two;
  two.options.durability = GENERATE(Durability::Power, Durability::Process);
  const Lent when = GENERATE(Lent::Sealing, Lent::Syncing, Lent::Applying);
  if (two.options.durability == Durability::Process && when == Lent::Syncing) return;  // nothing is synced
  const bool has_lane = GENERATE(false, true);
  if (has_lane) REQUIRE(two.archive->lane_journal().prepare());
  char round = '0';
  REQUIRE(two.commit_large('L', when, [&] {
    ++round;
    REQUIRE(two.commit_small(round));
    CHECK(two.read("small") == std::string(kSmallBytes, round));
    CHECK(two.read("large") == (when == Lent::Applying ? kLargeNew : kLargeOld));
    CHECK_FALSE(two.archive->check_for_change()->is_touched);
    CHECK_FALSE(two.may_be_edited());  // the large one's lock of the header is still there
  }));
  REQUIRE(two.lent > 0);
  CHECK(two.content() == TwoCommits::content_with('L', round));
  CHECK(two.read("large") == kLargeNew);
  CHECK_FALSE(two.archive->check_for_change()->is_touched);
  CHECK(two.may_be_edited());
  CHECK(two.archive->overlay().is_empty());
}

TEST_CASE("what another program writes while the turn is lent is noticed, by either commit",
          "[core][transaction][beside]") {
  TwoCommits two;
  const auto write_between = [&] {
    // File times have the resolution of the kernel's clock.
    const auto theirs = system_storage().open(two.path, Access::ReadWrite).value();
    const auto before = theirs->status()->identity;
    while (theirs->status()->identity == before)
      REQUIRE(theirs->write(std::as_bytes(std::span("x", 1)), 4096 + kPatchedBytes + 5000));
  };
  int noticed = 0;
  two.options.on_foreign_change = [&]() -> Result<void> {
    ++noticed;
    return {};
  };
  const bool has_small = GENERATE(false, true);
  const Lent when = GENERATE(Lent::Sealing, Lent::Applying);
  bool is_first = true;
  REQUIRE(two.commit_large('L', when, [&] {
    if (!std::exchange(is_first, false)) return;
    write_between();
    if (has_small) REQUIRE(two.commit_small('s'));
  }));
  CHECK(noticed == (has_small ? 1 : 0));
  CHECK(two.archive->check_for_change()->is_touched == !has_small);
}

TEST_CASE(
    "with company a large commit lets few bytes wait for the disk; if the disk fails, the journal stays",
    "[core][transaction][beside]") {
  constexpr std::uint64_t kPieces = 4;
  const std::string before(kPieces * Writeback::kWindowBytes, 'o');
  const std::string header = R"({"a":{"dtype":"U8","shape":[)" + std::to_string(before.size()) +
                             R"(],"data_offsets":[0,)" + std::to_string(before.size()) + "]}}";
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", archive_bytes(header, before));
  FaultyStorage storage;
  auto archive = Archive::open(path, Access::ReadWrite, storage).value();
  ReaderWriterLock readers;
  CommitOptions options;
  options.lend_turn = [&](const std::function<void()>& work) {
    if (!work) return true;
    work();
    // The next sync is the wait for the first piece.
    storage.plan().fail_call(FileCall::Sync, 1, EIO);
    return true;
  };
  const std::string after(before.size(), 'n');
  Transaction transaction(*archive);
  const auto stage = transaction.stage(*archive->version()->find("a")).value();
  REQUIRE(stage->write(std::as_bytes(std::span(after)), 0));
  const auto done = transaction.commit(options, [&](TensorId) -> ReaderWriterLock& { return readers; });
  REQUIRE_FALSE(done);
  CHECK(storage.plan().failed_call()->role == FileRole::Archive);
  CHECK_FALSE(archive->check_writable());
  CHECK(content_of(path) != archive_bytes(header, after));  // the commit has stopped
  archive.reset();
  archive = Archive::open(path, Access::ReadWrite).value();
  CHECK(content_of(path) == archive_bytes(header, after));
}

TEST_CASE("a commit beside another one recovers nothing: it says that it must wait",
          "[core][transaction][beside]") {
  TwoCommits two;
  std::optional<Error> refused;
  REQUIRE(two.commit_large('L', Lent::Applying, [&] {
    if (refused) return;
    plant_journal(two.path, kSmallAt + 4096, std::string(4096, 'd'));
    const auto done = two.commit_small('s');
    REQUIRE_FALSE(done);
    refused = done.error();
    CHECK_FALSE(two.may_be_edited());
  }));
  REQUIRE(refused);
  CHECK(refused->code == ErrorCode::Busy);
  CHECK(two.commit_small('s', false));
  CHECK(two.content().substr(kSmallAt) == std::string(kSmallBytes, 's'));
}

TEST_CASE("a sync that fails in a commit beside another one ends that one too",
          "[core][transaction][beside]") {
  FaultyStorage storage;
  TwoCommits two(storage);
  const Lent when = GENERATE(Lent::Sealing, Lent::Syncing, Lent::Applying);
  REQUIRE(two.archive->lane_journal().prepare());
  // A small commit syncs the archive before the record is written, then the record, and then the archive
  // again.
  const unsigned nth = GENERATE(1U, 3U);
  bool is_first = true;
  const auto large = two.commit_large('L', when, [&] {
    if (!std::exchange(is_first, false)) return;
    storage.plan().fail_call(FileCall::Sync, nth, EIO);
    CHECK_FALSE(two.commit_small('s'));
    CHECK(storage.plan().failed_call()->role == FileRole::Archive);
    CHECK(two.read("small") == std::string(kSmallBytes, nth == 3 ? 's' : 'o'));
  });
  REQUIRE_FALSE(large);
  CHECK_FALSE(two.archive->check_writable());
  // The large tensor has its old bytes, or the journal has the new ones.
  CHECK(two.read("large") == (when == Lent::Applying ? kLargeNew : kLargeOld));
  two.archive.reset();
  const auto again = Archive::open(two.path, Access::ReadWrite).value();
  CHECK(two.content() == TwoCommits::content_with(when == Lent::Applying ? 'L' : 'o', nth == 3 ? 's' : 'o'));
}
