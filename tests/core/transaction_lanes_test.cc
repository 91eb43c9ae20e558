// Commits through the lane journal on a real archive: commits of one writer, and their state after a call
// fails.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/lane_writer.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

bool is_free(const std::filesystem::path& journal) {
  const auto file = system_storage().open(journal, Access::ReadWrite).value();
  return !file->try_lock({0, 1}, LockKind::Exclusive)->has_value();
}

}  // namespace

TEST_CASE("from the third on small commits make no file: one sync of the journal, one of the archive",
          "[core][transaction][lane_journal]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  CHECK_FALSE(writer.lane_journal().is_wanted());
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
    CHECK(records_in(writer.lane_journal().path()).size() == 1);
  }
  CHECK_FALSE(writer.archive->check_for_change()->is_touched);
}

TEST_CASE_METHOD(WarmWriter, "the archive is written only when the lane journal has the record on the disk",
                 "[core][transaction][lane_journal]") {
  REQUIRE(writer.put("a", "first"));
  writer.begin();
  writer.write("b", "second");
  std::vector<std::pair<FileCall, FileRole>> order;
  storage.look = [&](const SeamCall& call) {
    if (call.kind == FileCall::Sync || call.kind == FileCall::Write) order.emplace_back(call.kind, call.role);
    if (call.kind == FileCall::Write && call.role == FileRole::Archive)
      CHECK(records_in(writer.lane_journal().path()).size() == 1);
  };
  REQUIRE(writer.commit());
  CHECK(order == std::vector<std::pair<FileCall, FileRole>>{{FileCall::Write, FileRole::Journal},
                                                            {FileCall::Sync, FileRole::Journal},
                                                            {FileCall::Write, FileRole::Archive},
                                                            {FileCall::Sync, FileRole::Archive}});
}

TEST_CASE_METHOD(WarmWriter,
                 "what others wrote and did not sync is synced before a lane journal has the record",
                 "[core][transaction][lane_journal]") {
  using Calls = std::vector<std::pair<FileCall, FileRole>>;
  Calls order;
  storage.look = [&](const SeamCall& call) {
    if (call.kind == FileCall::Sync || call.kind == FileCall::Write) order.emplace_back(call.kind, call.role);
  };
  const Calls usual = {{FileCall::Write, FileRole::Journal},
                       {FileCall::Sync, FileRole::Journal},
                       {FileCall::Write, FileRole::Archive},
                       {FileCall::Sync, FileRole::Archive}};
  Calls with_sync = usual;
  with_sync.insert(with_sync.begin(), {FileCall::Sync, FileRole::Archive});
  const auto put = [&](std::string_view bytes) {
    order.clear();
    const Result<void> done = writer.put("a", bytes);
    if (!done) throw std::runtime_error(done.error().message);
    place.expect(bytes, 0);
    return order;
  };
  CHECK(put("first") == usual);

  const auto after_last_write = std::filesystem::last_write_time(place.path) + std::chrono::seconds(1);
  std::fstream(place.path, std::ios::in | std::ios::out | std::ios::binary).seekp(kData + 100) << "stranger";
  std::filesystem::last_write_time(place.path, after_last_write);
  place.expect("stranger", 100);
  CHECK(put("second") == with_sync);
  CHECK(put("third") == usual);

  writer.options.durability = Durability::Process;
  CHECK(put("not synced") == Calls{usual[0], usual[2]});
  writer.options.durability = Durability::Power;
  std::filesystem::last_write_time(place.path, after_last_write + std::chrono::seconds(1));
  CHECK(put("after it") == with_sync);
  CHECK(put("the last") == usual);
  CHECK(place.content() == place.expected);

  // Another program changes the file during the last sync, after our last write.
  const auto look_on = std::exchange(storage.look, [&](const SeamCall& call) {
    if (call.kind != FileCall::Sync || call.role != FileRole::Archive) return;
    std::filesystem::last_write_time(place.path, after_last_write + std::chrono::seconds(2));
  });
  put("before the stranger");
  CHECK(writer.archive->check_for_change().value().is_touched);  // by another program
  storage.look = look_on;
  CHECK(put("behind him") == with_sync);

  // A second sync would succeed although the first one has lost bytes.
  std::filesystem::last_write_time(place.path, after_last_write + std::chrono::seconds(3));
  storage.failing = {{FileCall::Sync, FileRole::Archive}};
  const auto refused = writer.put("a", "refused");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EIO);
  storage.failing.clear();
  CHECK_FALSE(writer.put("a", "refused"));
  CHECK(place.content() == place.expected);
  REQUIRE(writer.lane_journal().retire(Durability::Power));
  CHECK(Writer(place.path).put("a", "opened anew"));
}

TEST_CASE("the first commit through a lane journal syncs the archive before it", "[core][transaction]") {
  Place place;
  Watched storage;
  Writer writer(place.path, storage);
  REQUIRE(writer.lane_journal().prepare());
  writer.begin();
  for (const int syncs : {2, 1}) {
    storage.calls.clear();
    REQUIRE(writer.put("a", "some bytes"));
    CHECK(storage.count(FileCall::Sync, FileRole::Journal) == 1);
    CHECK(storage.count(FileCall::Sync, FileRole::Archive) == syncs);
  }
}

TEST_CASE_METHOD(WarmWriter, "a staged write that outgrows a lane moves to a file and keeps its bytes",
                 "[core][transaction][lane_journal]") {
  REQUIRE(writer.put("b", "small"));
  place.expect("small", 16'384);
  storage.calls.clear();
  // One piece in every second block of the large tensor, and one in "a": scattered writes up to the limit of
  // memory.
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

TEST_CASE_METHOD(WarmWriter, "a change whose whole blocks do not fit into a lane goes through a file",
                 "[core][transaction][lane_journal]") {
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

TEST_CASE_METHOD(WarmWriter,
                 "a truncation of a large tensor takes its space on the disk at once, of a small one none",
                 "[core][transaction][lane_journal]") {
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

TEST_CASE_METHOD(WarmWriter, "a large commit settles the lane journal before it has a journal of its own",
                 "[core][transaction][lane_journal]") {
  REQUIRE(writer.put("large", "small"));
  CHECK_FALSE(writer.lane_journal().is_settled());
  const std::string bytes(kLargeBytes, 'L');
  writer.begin();
  writer.write("large", bytes);
  place.expect(bytes, 32'768);
  int published = 0;
  storage.look = [&](const SeamCall& call) {
    if (call.kind != FileCall::Publish) return;
    ++published;
    CHECK(writer.lane_journal().is_settled());
    CHECK(records_in(writer.lane_journal().path()).empty());
  };
  REQUIRE(writer.commit());
  CHECK(published == 1);
  CHECK(place.content() == place.expected);
  storage.look = {};
  // The journal serves the next small commit.
  storage.calls.clear();
  REQUIRE(writer.put("a", "again"));
  CHECK(storage.count(FileCall::CreateUnnamed) == 0);
}

TEST_CASE("behind the commit point a failure shows the new bytes, out of memory, and ends the writing",
          "[core][transaction][lane_journal]") {
  const FileCall failing = GENERATE(FileCall::Sync, FileCall::Write);
  Place place;
  {
    Watched storage;
    Writer writer(place.path, storage);
    writer.warm_up();
    REQUIRE(writer.put("a", "earlier", 4000));
    place.expect("earlier", 4000);
    const std::filesystem::path journal = writer.lane_journal().path();
    const std::string before = place.content();
    storage.failing = {{failing, FileRole::Archive}};
    writer.write("b", "committed", 100);
    place.expect("committed", 16'384 + 100);
    const auto committed = writer.commit();
    REQUIRE_FALSE(committed);
    CHECK(committed.error().errno_value == EIO);
    CHECK(committed.error().message.find("the change is committed in " + journal.string()) !=
          std::string::npos);
    CHECK(writer.transaction->is_empty());
    if (failing == FileCall::Write) CHECK(place.content() == before);
    CHECK(writer.read("b") == place.expected.substr(kData + 16'384, 16'384));
    CHECK(writer.read("a") == place.expected.substr(kData, 16'384));
    // Any user who may recover the archive can do so now.
    CHECK(is_free(journal));
    REQUIRE(records_in(journal).size() == 1);
    CHECK_FALSE(writer.lane_journal().is_ready());
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

TEST_CASE_METHOD(WarmWriter, "a commit that fails before its commit point may be tried again, through a file",
                 "[core][transaction][lane_journal]") {
  const FileCall failing = GENERATE(FileCall::Sync, FileCall::Write);
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

TEST_CASE_METHOD(WarmWriter, "a commit that nobody can take back ends the writing",
                 "[core][transaction][lane_journal]") {
  storage.failing = {{FileCall::Sync, FileRole::Journal}, {FileCall::Remove, FileRole::Journal}};
  const auto committed = writer.put("b", "perhaps");
  REQUIRE_FALSE(committed);
  CHECK(committed.error().code == ErrorCode::CommitUnknown);
  CHECK(place.content() == place.expected);
  storage.failing = {};
  CHECK_FALSE(writer.archive->check_writable());
  CHECK_FALSE(writer.put("a", "later"));
  const auto other = system_storage().open(place.path, Access::ReadWrite).value();
  REQUIRE(recover(system_storage(), place.path, *other));
  CHECK(place.names().size() == 1);
  CHECK(writer.put("a", "later"));
}

TEST_CASE("two tensors of one transaction are staged side by side, also while it moves to the disk",
          "[core][transaction][lane_journal]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", archive_text());
  Writer writer(path);
  REQUIRE(writer.lane_journal().prepare());
  std::string expected = content_of(path);
  for (int times = 0; times < 50; ++times) {
    writer.begin();
    const std::string small(16'384, static_cast<char>('a' + times % 26));
    const std::string large(kLargeBytes, static_cast<char>('A' + times % 26));
    const auto write = [](Staging& staging, const std::string& bytes, std::size_t piece_bytes) {
      for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
        const auto piece =
            std::as_bytes(std::span(bytes)).subspan(at, std::min(piece_bytes, bytes.size() - at));
        if (!staging.write(piece, at)) return false;
      }
      return true;
    };
    Staging& a = writer.stage("a");
    Staging& b = writer.stage("b");
    Staging& other = writer.stage("large");
    std::atomic<int> ready = 0;
    const auto write_with_others = [&](Staging& staging, const std::string& bytes, std::size_t piece_bytes) {
      return std::async(std::launch::async, [&, piece_bytes] {
        for (++ready; ready < 3;) std::this_thread::yield();
        return write(staging, bytes, piece_bytes);
      });
    };
    auto first = write_with_others(a, small, 64);
    auto second = write_with_others(b, small, 64);
    auto third = write_with_others(other, large, 1500);
    REQUIRE(first.get());
    REQUIRE(second.get());
    REQUIRE(third.get());
    REQUIRE(writer.commit());
    expected.replace(kData, 2 * small.size(), small + small);
    expected.replace(kData + 2 * small.size(), large.size(), large);
    REQUIRE(content_of(path) == expected);
  }
}
