// Commits through the journal that stays, on a real archive.
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/standing_scan.h"
#include "core/transaction.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// "a" and "b" in blocks of their own and apart; "c" shares a block with none of them; "large" has 40 blocks.
constexpr std::string_view kHeader =
    R"({"a":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]},)"
    R"("b":{"dtype":"U8","shape":[16384],"data_offsets":[16384,32768]},)"
    R"("large":{"dtype":"U8","shape":[163840],"data_offsets":[32768,196608]}})";
constexpr std::uint64_t kData = kBlockBytes;
constexpr std::uint64_t kLargeBytes = 163'840;

/// Counts calls, fails those it is told to, and looks on.
class Watched final : private Interceptor, public InterceptedStorage {
 public:
  Watched() : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)) {}

  std::map<std::pair<FileCall, FileRole>, int> calls;
  std::set<std::pair<FileCall, FileRole>> failing;  // for good
  int errno_value = EIO;
  std::function<void(const SeamCall&)> look;

  [[nodiscard]] int count(FileCall kind) const {
    int sum = 0;
    for (const auto& [call, times] : calls) sum += call.first == kind ? times : 0;
    return sum;
  }
  [[nodiscard]] int count(FileCall kind, FileRole role) const {
    const auto found = calls.find({kind, role});
    return found == calls.end() ? 0 : found->second;
  }

 private:
  Verdict before(const SeamCall& call) override {
    ++calls[{call.kind, call.role}];
    if (look) look(call);
    if (!failing.contains({call.kind, call.role})) return {};
    return {.kind = Verdict::Kind::Fail, .errno_value = errno_value};
  }
};

std::string archive_text() {
  std::string header(kHeader);
  header.resize(kData - 8, ' ');
  return archive_bytes(header, std::string(196'608, 'o'));
}

/// One process's view of the archive: what a mount does for each close.
class Writer {
 public:
  explicit Writer(const std::filesystem::path& path, Storage& storage = system_storage())
      : archive(Archive::open(path, Access::ReadWrite, storage).value()) {
    options.lock_patience = std::chrono::milliseconds(50);
    begin();
  }
  void begin() { transaction = std::make_unique<Transaction>(*archive); }
  Staging& stage(std::string_view tensor) const {
    return **transaction->stage(archive->tensors().find(tensor).value());
  }
  void write(std::string_view tensor, std::string_view bytes, std::uint64_t offset = 0) const {
    const auto staged = stage(tensor).write(std::as_bytes(std::span(bytes.data(), bytes.size())), offset);
    if (!staged) throw std::runtime_error(staged.error().message);
  }
  Result<void> commit() {
    auto committed =
        transaction->commit(options, [this](std::uint32_t) -> ReaderWriterLock& { return lock; });
    if (committed) begin();
    return committed;
  }
  Result<void> put(std::string_view tensor, std::string_view bytes, std::uint64_t offset = 0) {
    begin();
    write(tensor, bytes, offset);
    return commit();
  }
  /// As keep_journal() of a mount does after each commit.
  void keep_journal() const {
    if (standing().is_wanted() && !standing().prepare()) throw std::runtime_error("prepare");
  }
  /// Two small commits that change nothing, and the journal for the third.
  void warm_up() {
    for (int at = 0; at < 2; ++at) {
      if (!put("a", "o") || standing().is_ready()) throw std::runtime_error("warm up");
      keep_journal();
    }
    if (!standing().is_ready()) throw std::runtime_error("no standing journal");
  }
  [[nodiscard]] StandingJournal& standing() const { return archive->standing_journal(); }
  [[nodiscard]] std::string read(std::string_view tensor) const {
    std::vector<std::byte> scratch;
    const Tensor found = archive->tensors()[archive->tensors().find(tensor).value()];
    const auto bytes = archive->read(archive->file_range(found.data), scratch).value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // NOLINT: bytes as characters
  }

  std::unique_ptr<Archive> archive;
  ReaderWriterLock lock;
  CommitOptions options;
  std::unique_ptr<Transaction> transaction;
};

struct Place {
  Place() : path(directory.write("m.safetensors", archive_text())), expected(archive_text()) {}
  /// The test's own idea of what the archive holds.
  void expect(std::string_view bytes, std::uint64_t data_offset) {
    expected.replace(kData + data_offset, bytes.size(), bytes);
  }
  [[nodiscard]] std::string content() const { return content_of(path); }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      all.insert(entry.path().filename().string());
    return all;
  }

  TemporaryDirectory directory;
  std::string path;
  std::string expected;
};

std::vector<JournalRecord> records_in(const std::filesystem::path& journal) {
  const auto file = system_storage().open(journal, Access::ReadOnly).value();
  return read_lanes(*file).value();
}

bool is_free(const std::filesystem::path& journal) {
  const auto file = system_storage().open(journal, Access::ReadWrite).value();
  return !file->try_lock({0, 1}, LockKind::Exclusive)->has_value();
}

}  // namespace

TEST_CASE("from the third on small commits make no file: one sync of the journal, one of the archive",
          "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  CHECK_FALSE(writer.standing().is_wanted());
  writer.warm_up();
  const auto names = place.names();
  CHECK(names.size() == 2);
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    storage.calls.clear();
    const std::string bytes = "round " + std::to_string(round);
    const std::uint64_t offset = 5000 + 17 * static_cast<std::uint64_t>(round);
    REQUIRE(writer.put(round % 2 == 0 ? "a" : "b", bytes, offset));
    place.expect(bytes, (round % 2 == 0 ? 0 : 16'384) + offset);
    for (const FileCall kind : {FileCall::CreateUnnamed, FileCall::Publish, FileCall::Remove,
                                FileCall::SyncDirectory, FileCall::Reserve}) {
      CHECK(storage.count(kind) == 0);
    }
    CHECK(storage.count(FileCall::Sync, FileRole::Journal) == 1);
    CHECK(storage.count(FileCall::Sync, FileRole::Archive) == 1);
    CHECK(storage.count(FileCall::Write, FileRole::Journal) == 1);
    CHECK(place.names() == names);
    CHECK(place.content() == place.expected);
    CHECK(records_in(writer.standing().path()).size() == 1);
  }
  CHECK_FALSE(writer.archive->check_for_change()->is_touched);
}

TEST_CASE("the archive is written only when the standing journal has the record on the disk",
          "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  REQUIRE(writer.put("a", "first"));
  writer.begin();
  writer.write("b", "second");
  std::vector<std::pair<FileCall, FileRole>> order;
  storage.look = [&](const SeamCall& call) {
    if (call.kind == FileCall::Sync || call.kind == FileCall::Write) order.emplace_back(call.kind, call.role);
    if (call.kind == FileCall::Write && call.role == FileRole::Archive)
      CHECK(records_in(writer.standing().path()).size() == 1);
  };
  REQUIRE(writer.commit());
  CHECK(order == std::vector<std::pair<FileCall, FileRole>>{{FileCall::Write, FileRole::Journal},
                                                            {FileCall::Sync, FileRole::Journal},
                                                            {FileCall::Write, FileRole::Archive},
                                                            {FileCall::Sync, FileRole::Archive}});
}

TEST_CASE("a staged write that outgrows a lane moves to a file and keeps its bytes",
          "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  REQUIRE(writer.put("b", "small"));
  place.expect("small", 16'384);
  storage.calls.clear();
  // Every second block of the large tensor, some of "a": scattered, as far as memory goes.
  for (std::uint64_t at = 0; at < kLaneBlocks - 1; ++at) {
    const std::string bytes = "piece " + std::to_string(at);
    writer.write("large", bytes, 2 * at * kBlockBytes + 100);
    place.expect(bytes, 32'768 + 2 * at * kBlockBytes + 100);
  }
  writer.write("a", "in memory", 7);
  place.expect("in memory", 7);
  CHECK(storage.count(FileCall::CreateUnnamed) == 0);
  writer.write("large", "the block too many", 33 * kBlockBytes - 5);
  place.expect("the block too many", 32'768 + 33 * kBlockBytes - 5);
  CHECK(storage.count(FileCall::CreateUnnamed) == 1);
  writer.write("large", "on the disk", 10);
  place.expect("on the disk", 32'768 + 10);
  const std::string expected_large = place.expected.substr(kData + 32'768, kLargeBytes);
  std::string seen(kLargeBytes, '?');
  REQUIRE(writer.stage("large").read(std::as_writable_bytes(std::span(seen)), 0,
                                     [](std::span<std::byte> to, std::uint64_t) -> Result<void> {
                                       std::ranges::fill(to, std::byte{'o'});
                                       return {};
                                     }));
  CHECK(seen == expected_large);
  CHECK(storage.count(FileCall::CreateUnnamed) == 1);
  REQUIRE(writer.commit());
  CHECK(place.content() == place.expected);
  CHECK(place.names().size() == 2);
}

TEST_CASE("a change whose whole blocks do not fit into a lane goes through a file",
          "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  storage.calls.clear();
  const std::uint64_t blocks = kLaneBlocks + GENERATE(0U, 1U);
  const std::string bytes(blocks * kBlockBytes, 'n');
  writer.write("large", bytes.substr(0, bytes.size() / 2), 0);
  writer.write("large", bytes.substr(bytes.size() / 2), bytes.size() / 2);
  place.expect(bytes, 32'768);
  REQUIRE(writer.commit());
  CHECK(storage.count(FileCall::CreateUnnamed) == (blocks == kLaneBlocks ? 0 : 1));
  CHECK(storage.count(FileCall::Publish) == (blocks == kLaneBlocks ? 0 : 1));
  CHECK(place.content() == place.expected);
}

TEST_CASE("a truncation of a large tensor takes its space on the disk at once, of a small one none",
          "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  storage.calls.clear();
  REQUIRE(writer.stage("a").resize(0));
  CHECK(storage.count(FileCall::CreateUnnamed) == 0);
  CHECK(storage.count(FileCall::Reserve) == 0);
  REQUIRE(writer.stage("large").resize(0));
  CHECK(storage.count(FileCall::CreateUnnamed) == 1);
  CHECK(storage.count(FileCall::Reserve) == 1);
  writer.begin();
  storage.failing = {{FileCall::Reserve, FileRole::Journal}};
  storage.errno_value = ENOSPC;
  const auto resized = writer.stage("large").resize(0);
  REQUIRE_FALSE(resized);
  CHECK(resized.error().errno_value == ENOSPC);
  writer.begin();
  REQUIRE(writer.stage("a").resize(0));
  CHECK(place.content() == place.expected);
}

TEST_CASE("a large commit settles the standing journal before it has a journal of its own",
          "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  REQUIRE(writer.put("large", "small"));
  CHECK_FALSE(writer.standing().is_settled());
  const std::string bytes(kLargeBytes, 'L');
  writer.begin();
  writer.write("large", bytes);
  place.expect(bytes, 32'768);
  int published = 0;
  storage.look = [&](const SeamCall& call) {
    if (call.kind != FileCall::Publish) return;
    ++published;
    CHECK(writer.standing().is_settled());
    CHECK(records_in(writer.standing().path()).empty());
  };
  REQUIRE(writer.commit());
  CHECK(published == 1);
  CHECK(place.content() == place.expected);
  storage.look = {};
  // It serves the next small one.
  storage.calls.clear();
  REQUIRE(writer.put("a", "again"));
  CHECK(storage.count(FileCall::CreateUnnamed) == 0);
}

TEST_CASE("behind the commit point a failure shows the new bytes, out of memory, and ends the writing",
          "[core][transaction][standing_journal]") {
  const FileCall failing = GENERATE(FileCall::Sync, FileCall::Write);
  Place place;
  {
    Watched storage;
    Writer writer(place.path, storage);
    writer.warm_up();
    REQUIRE(writer.put("a", "earlier", 4000));
    place.expect("earlier", 4000);
    const std::filesystem::path journal = writer.standing().path();
    const std::string before = place.content();
    storage.failing = {{failing, FileRole::Archive}};
    writer.write("b", "committed", 100);
    place.expect("committed", 16'384 + 100);
    const auto committed = writer.commit();
    REQUIRE_FALSE(committed);
    CHECK(committed.error().errno_value == EIO);
    CHECK(writer.transaction->is_empty());
    if (failing == FileCall::Write) CHECK(place.content() == before);
    CHECK(writer.read("b") == place.expected.substr(kData + 16'384, 16'384));
    CHECK(writer.read("a") == place.expected.substr(kData, 16'384));
    // Whoever can may recover it now.
    CHECK(is_free(journal));
    REQUIRE(records_in(journal).size() == 1);
    CHECK_FALSE(writer.standing().is_ready());
    storage.failing = {};
    const auto later = writer.put("a", "later");
    REQUIRE_FALSE(later);
    CHECK(later.error().errno_value == EIO);
    CHECK(later.error().message.find("takes no more writes") != std::string::npos);
    CHECK(later.error().message.find("stfs recover") != std::string::npos);
    CHECK(later.error().message.find(journal.string()) != std::string::npos);
    CHECK(place.names().size() == 2);
  }
  const Writer next(place.path);
  REQUIRE(next.archive->recovered().size() == 1);
  CHECK(next.archive->recovered()[0].action == JournalAction::Applied);
  CHECK(place.content() == place.expected);
  CHECK(place.names().size() == 1);
}

TEST_CASE("a commit that fails before its commit point may be tried again, through a file",
          "[core][transaction][standing_journal]") {
  const FileCall failing = GENERATE(FileCall::Sync, FileCall::Write);
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  storage.failing = {{failing, FileRole::Journal}};
  storage.errno_value = ENOSPC;
  writer.write("b", "in the end", 100);
  const auto committed = writer.commit();
  REQUIRE_FALSE(committed);
  CHECK(committed.error().errno_value == ENOSPC);
  CHECK(place.content() == place.expected);
  CHECK(place.names().size() == 1);
  CHECK(writer.archive->check_writable());
  storage.failing = {};
  REQUIRE(writer.commit());
  place.expect("in the end", 16'384 + 100);
  CHECK(place.content() == place.expected);
  CHECK(place.names().size() == 1);
}

TEST_CASE("a commit that nobody can take back ends the writing", "[core][transaction][standing_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  writer.warm_up();
  storage.failing = {{FileCall::Sync, FileRole::Journal}, {FileCall::Remove, FileRole::Journal}};
  const auto committed = writer.put("b", "perhaps");
  REQUIRE_FALSE(committed);
  CHECK(committed.error().code == ErrorCode::CommitUnknown);
  CHECK(place.content() == place.expected);
  storage.failing = {};
  CHECK_FALSE(writer.archive->check_writable());
  CHECK_FALSE(writer.put("a", "later"));
}

TEST_CASE("two writers of one tensor who settle in between lose no update",
          "[core][transaction][standing_journal]") {
  Place place;
  Writer one(place.path);
  Writer two(place.path);
  one.warm_up();
  two.warm_up();
  CHECK(place.names().size() == 3);
  for (std::uint64_t round = 0; round < 8; ++round) {
    CAPTURE(round);
    Writer& writer = round % 2 == 0 ? one : two;
    Writer& other = round % 2 == 0 ? two : one;
    const std::string bytes = "update " + std::to_string(round);
    REQUIRE(writer.put("a", bytes, 100 * round));  // all in one block
    place.expect(bytes, 100 * round);
    CHECK(place.content() == place.expected);
    CHECK(writer.read("a") == other.read("a"));
    REQUIRE(writer.standing().settle(Durability::Power));
  }
}

TEST_CASE("who does not settle keeps others waiting for their patience, and no longer",
          "[core][transaction][standing_journal]") {
  Place place;
  Writer one(place.path);
  Writer two(place.path);
  one.warm_up();
  two.warm_up();
  REQUIRE(one.put("a", "one"));
  place.expect("one", 0);
  REQUIRE(two.put("b", "elsewhere"));  // other blocks are no matter
  place.expect("elsewhere", 16'384);
  const auto began = std::chrono::steady_clock::now();
  two.write("a", "two", 100);
  const auto refused = two.commit();
  const auto waited = std::chrono::steady_clock::now() - began;
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::Busy);
  CHECK(refused.error().errno_value == EBUSY);
  CHECK(refused.error().message.find(place.path) != std::string::npos);
  CHECK(refused.error().message.find("has not settled") != std::string::npos);
  CHECK(waited >= two.options.lock_patience);
  CHECK(waited < two.options.lock_patience + std::chrono::seconds(3));
  CHECK(place.content() == place.expected);
  CHECK(two.standing().is_settled());  // the other may be waiting for him in the same way
  // It is still staged, and once the other has settled it goes through.
  REQUIRE(one.standing().settle(Durability::Power));
  REQUIRE(two.commit());
  place.expect("two", 100);
  CHECK(place.content() == place.expected);
}

TEST_CASE("who waits goes on as soon as the other settles", "[core][transaction][standing_journal]") {
  Place place;
  Writer one(place.path);
  Writer two(place.path);
  one.warm_up();
  two.warm_up();
  two.options.lock_patience = std::chrono::seconds(20);
  REQUIRE(one.put("a", "one"));
  place.expect("one", 0);
  std::thread janitor([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    static_cast<void>(one.standing().settle(Durability::Power));
  });
  const auto began = std::chrono::steady_clock::now();
  const auto committed = two.put("a", "two", 100);
  const auto waited = std::chrono::steady_clock::now() - began;
  janitor.join();
  REQUIRE(committed);
  place.expect("two", 100);
  CHECK(place.content() == place.expected);
  CHECK(waited < std::chrono::seconds(10));
}

TEST_CASE("two who commit to the same bytes at the same time lose no update and wait for nobody for long",
          "[core][transaction][standing_journal]") {
  constexpr std::uint64_t kRounds = 40;
  Place place;
  std::atomic<int> failures = 0;
  std::atomic<std::int64_t> longest_ms = 0;
  Writer one(place.path);
  Writer two(place.path);
  one.warm_up();
  two.warm_up();
  const auto write = [&](Writer& writer, std::uint64_t first, char fill) {
    writer.options.lock_patience = std::chrono::seconds(20);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const auto began = std::chrono::steady_clock::now();
      if (!writer.put("a", std::string(10, fill), first + 20 * round)) ++failures;
      const auto waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
      longest_ms = std::max(longest_ms.load(), waited.count());
    }
    if (!writer.standing().settle(Durability::Power)) ++failures;
  };
  std::thread other([&] { write(two, 10, '2'); });
  write(one, 0, '1');
  other.join();
  for (std::uint64_t round = 0; round < kRounds; ++round)
    place.expect(std::string(10, '1') + std::string(10, '2'), 20 * round);
  CHECK(failures == 0);
  CHECK(place.content() == place.expected);
  CHECK(longest_ms < 10'000);
}
