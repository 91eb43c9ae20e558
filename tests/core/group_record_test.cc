// Tests the record that commits several journals at once, and commits with it on real files.
#include "core/journal/group_record.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/commit/commit_protocol.h"
#include "core/journal/recovery.h"
#include "core/storage/permissions.h"
#include "tests/core/exchanged_name.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/planted_journal.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const std::vector<std::string> kJournals = {".a.safetensors.stj.00", ".b\n.safetensors.stj.01"};

std::string archive_text(char fill) {
  return archive_bytes(R"({"t":{"dtype":"U8","shape":[5000],"data_offsets":[0,5000]}})",
                       std::string(5000, fill));
}

/// Two archives with one tensor each, and the bytes to write into both.
class Pair {
 public:
  explicit Pair(const std::string& second_directory = "", Storage& storage = system_storage()) {
    paths_.push_back(directory_.write("a.safetensors", archive_text('a')));
    std::filesystem::create_directories(directory_.path() / second_directory);
    paths_.push_back(directory_.write(second_directory + "b.safetensors", archive_text('b')));
    for (const auto& path : paths_) {
      archives_.push_back(Archive::open(path, Access::ReadWrite, storage).value());
      transactions_.push_back(std::make_unique<Transaction>(*archives_.back()));
    }
  }

  void stage(std::size_t at, char fill) {
    const std::string bytes(5000, fill);
    REQUIRE((*transactions_[at]->stage(TensorId{}))->write(std::as_bytes(std::span(bytes)), 0));
  }
  void drop(std::size_t at) { transactions_[at]->drop(TensorId{}); }
  Result<void> commit() {
    CommitProtocol protocol;
    for (const auto& transaction : transactions_) protocol.add(*transaction, options_, lock_of_);
    return protocol.commit();
  }
  /// The first byte of each tensor, in the files.
  [[nodiscard]] std::string fills() const {
    std::string fills;
    for (const auto& path : paths_) fills += content_of(path).back();
    return fills;
  }
  [[nodiscard]] std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      count += entry.is_regular_file();
    return count;
  }
  [[nodiscard]] bool is_staged(std::size_t at) const { return !transactions_[at]->is_empty(); }

 private:
  TemporaryDirectory directory_;
  std::vector<std::filesystem::path> paths_;
  std::vector<std::unique_ptr<Archive>> archives_;
  std::vector<std::unique_ptr<Transaction>> transactions_;
  CommitOptions options_;
  ReaderWriterLock readers_;
  Transaction::LockOf lock_of_ = [this](TensorId) -> ReaderWriterLock& { return readers_; };
};

/// Both archives have staged bytes, on a store that fails on request.
struct FaultyPair {
  FaultyPair() {
    pair.stage(0, 'x');
    pair.stage(1, 'y');
  }
  FaultyStorage storage;
  Pair pair{"", storage};
};

}  // namespace

TEST_CASE("a group record comes back as it was, and nothing else passes for one", "[core][group_record]") {
  const std::string bytes = encode_group_record({kJournals, {7, -8}});
  CHECK(decode_group_record(bytes)->journals == kJournals);
  CHECK(decode_group_record(bytes)->own == FileNumbers{7, -8});
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    CHECK_FALSE(decode_group_record(flipped));
    CHECK_FALSE(decode_group_record(bytes.substr(0, at)));
  }
  CHECK_FALSE(decode_group_record(encode_group_record({{"../elsewhere"}})));
  CHECK_FALSE(decode_group_record(encode_group_record({{"..", "a"}})));
  CHECK_FALSE(decode_group_record(encode_group_record({{""}})));
  CHECK_FALSE(is_group_record_name("../.a.stj.00.group"));
  CHECK_FALSE(is_group_record_name("/tmp/.a.group"));
  CHECK(is_group_record_name(".a.stj.00.group"));
}

TEST_CASE("a group record has no empty name, and no more journals than a group", "[core][group_record]") {
  const std::vector<std::string> most(kMaxGroupJournals, ".a");
  CHECK(decode_group_record(encode_group_record({most, {7, -8}}))->journals.size() == kMaxGroupJournals);
  std::vector<std::string> more = most;
  more.emplace_back(".a");
  CHECK_FALSE(decode_group_record(encode_group_record({more})));
  std::vector<std::string> with_empty = kJournals;
  with_empty.resize(1000);
  CHECK_FALSE(decode_group_record(encode_group_record({with_empty})));
}

TEST_CASE("a long group record that is a hole is not read", "[core][group_record]") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.write(".a.stj.0.group", "STFSGRP1");
  std::filesystem::resize_file(path, 2 << 20);
  WatchedStorage storage;
  const auto journals = journals_of_group(storage, path);
  REQUIRE_FALSE(journals);
  CHECK(journals.error().message.find("hole") != std::string::npos);
  CHECK(storage.count(FileCall::Read) == 0);
}

TEST_CASE("to find the records of many journals each record is read once, and none that may have been linked",
          "[core][group_record]") {
  const TemporaryDirectory directory;
  const std::string archive = directory.write("b.safetensors", archive_text('b'));
  const std::string record = directory.write(".a.stj.0.group", encode_group_record({kJournals}));
  const std::string linked = directory.write("linked", encode_group_record({{".b.stj.1", ".b.stj.2"}}));
  std::filesystem::create_hard_link(linked, directory / ".a.stj.1.group");
  const auto file = system_storage().open(archive, Access::ReadOnly).value();
  WatchedStorage storage;
  const std::set<std::string> journals = {kJournals[0], kJournals[1], ".b.stj.1", ".b.stj.2"};
  const auto found =
      find_group_records(storage, directory.path(), journals, strict_status_of(*file).value()).value();
  const std::map<std::string, std::string> due = {{kJournals[0], ".a.stj.0.group"},
                                                  {kJournals[1], ".a.stj.0.group"}};
  CHECK(found == due);
  CHECK(storage.count(FileCall::Read) == 1);
}

TEST_CASE("several archives change together, and nothing is left beside them", "[core][group_record]") {
  Pair pair;
  pair.stage(0, 'x');
  pair.stage(1, 'y');
  REQUIRE(pair.commit());
  CHECK(pair.fills() == "xy");
  CHECK(pair.files() == 2);
  CHECK_FALSE(pair.is_staged(0));
  CHECK_FALSE(pair.is_staged(1));
}

TEST_CASE("a group of which one archive changes is a plain commit", "[core][group_record]") {
  Pair pair;
  pair.stage(1, 'y');
  REQUIRE(pair.commit());
  CHECK(pair.fills() == "ay");
  CHECK(pair.files() == 2);
}

TEST_CASE("archives in different directories are not committed together", "[core][group_record]") {
  Pair pair("elsewhere/");
  pair.stage(0, 'x');
  pair.stage(1, 'y');
  const auto done = pair.commit();
  REQUIRE_FALSE(done);
  CHECK(done.error().errno_value == EOPNOTSUPP);
  CHECK(done.error().message.find("different directories") != std::string::npos);
  CHECK(pair.fills() == "ab");
  CHECK(pair.files() == 2);
}

TEST_CASE_METHOD(FaultyPair, "a part that can't be locked leaves all as they were, to be tried again",
                 "[core][group_record]") {
  storage.plan().fail_call(FileCall::Lock, 3, EACCES);
  CHECK_FALSE(pair.commit());
  CHECK(pair.fills() == "ab");
  storage.plan().fail_call(0, 0);
  REQUIRE(pair.commit());
  CHECK(pair.fills() == "xy");
}

TEST_CASE_METHOD(FaultyPair, "a group that fails before its commit point may be tried again",
                 "[core][group_record]") {
  struct Failure {
    FileCall call;
    unsigned nth;
  };
  // The record reserves its name before the two journals have theirs. The last calls are its commit point.
  const auto failure = GENERATE(Failure{FileCall::CreateUnnamed, 1}, Failure{FileCall::Sync, 3},
                                Failure{FileCall::Publish, 1}, Failure{FileCall::Publish, 2},
                                Failure{FileCall::Rename, 1}, Failure{FileCall::SyncDirectory, 3});
  storage.plan().fail_call(failure.call, failure.nth, ENOSPC);
  const auto failed = pair.commit();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().errno_value == ENOSPC);
  CHECK(pair.fills() == "ab");
  CHECK(pair.is_staged(0));
  CHECK(pair.is_staged(1));
  CHECK(pair.files() == 2);
  storage.plan().fail_call(0, 0);
  REQUIRE(pair.commit());
  CHECK(pair.fills() == "xy");
  CHECK(pair.files() == 2);
}

TEST_CASE_METHOD(FaultyPair,
                 "a journal that fails spoils those of the other archives of its group not at all",
                 "[core][group_record]") {
  // The group record and the file that reserves its name are published before the journals.
  const auto [call, nth] = GENERATE(std::pair(FileCall::Sync, 2U), std::pair(FileCall::Publish, 4U),
                                    std::pair(FileCall::SyncDirectory, 2U));
  storage.plan().fail_call(call, nth, EIO);
  REQUIRE_FALSE(pair.commit());
  CHECK(pair.fills() == "ab");
  storage.plan().fail_call(0, 0);
  pair.drop(1);
  REQUIRE(pair.commit());
  CHECK(pair.fills() == "xb");
  CHECK(pair.files() == 2);
}

TEST_CASE("the last journal of a group takes the group record with it, though it was made void",
          "[core][group_record]") {
  const TemporaryDirectory directory;
  const std::string id(32, '0');
  const std::string voided = ".b.safetensors.stj." + id;
  const std::string other = ".a.safetensors.stj." + id;
  const std::filesystem::path archive = directory.write("b.safetensors", archive_text('b'));
  directory.write(voided, std::string(kBlockBytes, '\0'));
  const std::filesystem::path group_record =
      directory.write(other + "1.group", group_record_for(directory / (other + "1.group"), {other, voided}));
  directory.write(".damaged.group", "no group record");
  const bool has_another = GENERATE(false, true);
  if (has_another) directory.write(other, "");
  const auto file = system_storage().open(archive, Access::ReadWrite).value();
  REQUIRE(recover(system_storage(), archive, *file));
  CHECK_FALSE(std::filesystem::exists(directory.path() / voided));
  CHECK(std::filesystem::exists(group_record) == has_another);
}

TEST_CASE("an empty file reserves the name of a group record before its journals tell it",
          "[core][group_record]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", archive_text('m'));
  const auto archive = system_storage().open(path, Access::ReadWrite).value();
  const auto hidden = [&] { return system_storage().list(directory.path(), ".m").value(); };
  const FileStatus writers = strict_status_of(*archive).value();
  const bool is_published = GENERATE(true, false);
  {
    auto record = GroupRecord::create(system_storage(), path, *archive).value();
    const std::filesystem::path named = directory / record.name();
    const auto look = [&] {
      return look_at_group_record(system_storage(), named, kJournals.back(), writers).value();
    };
    CHECK(hidden().empty());
    REQUIRE(record.seal(kJournals, Durability::Power));
    CHECK(std::filesystem::is_empty(named));
    CHECK(look().state == GroupState::Absent);
    CHECK(hidden().size() == 2);
    if (is_published) {
      REQUIRE(record.publish(Durability::Power));
      CHECK(look().state == GroupState::Committed);
      CHECK(hidden() == std::vector<std::string>{record.name()});
      REQUIRE(record.remove());
    } else {
      record.give_up();
    }
    CHECK(look().state == GroupState::Absent);
    CHECK(hidden().empty());
  }
  CHECK(hidden().empty());
}

TEST_CASE("a group record is for the writers of all its archives", "[core][group_record]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to give archives away");
    return;
  }
  const TemporaryDirectory directory;
  const std::filesystem::path first = directory.write("a.safetensors", archive_text('a'));
  const std::vector<std::filesystem::path> others = {directory.write("b.safetensors", archive_text('b'))};
  const auto give = [](const std::filesystem::path& path, uid_t owner, mode_t mode) {
    REQUIRE(::chown(path.c_str(), owner, 200) == 0);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
  };
  const auto made = [&]() -> FileStatus {
    const auto opened = system_storage().open(first, Access::ReadOnly).value();
    const auto other = system_storage().open(others.front(), Access::ReadOnly).value();
    const std::vector<const File*> other_files = {other.get()};
    auto record = GroupRecord::create(system_storage(), first, *opened, other_files).value();
    REQUIRE(record.seal(kJournals, Durability::Process));
    REQUIRE(record.publish(Durability::Process));
    const auto path = directory.path() / record.name();
    const FileStatus status = system_storage().status(path).value();
    for (const auto& archive : {first, others.front()}) {
      const auto verdict = look_at_group_record(
          system_storage(), path, kJournals.front(),
          strict_status_of(*system_storage().open(archive, Access::ReadOnly).value()).value());
      CHECK(verdict.value().state == GroupState::Committed);
      CHECK(verdict.value().ignored.empty());
    }
    REQUIRE(record.remove());
    return status;
  };
  give(first, 1000, 0660);
  give(others.front(), 1000, 0660);
  CHECK((made().mode & 0777U) == 0660);
  CHECK(made().uid == 1000);
  // Only its owner may read the second archive.
  give(others.front(), 1000, 0600);
  CHECK((made().mode & 0777U) == 0644);
  CHECK(made().uid == 1000);
  // The archives have different owners: only root may write both.
  give(others.front(), 1001, 0660);
  CHECK((made().mode & 0777U) == 0644);
  CHECK(made().uid == 0);
}

TEST_CASE("a group record has the access of the open archives, whatever files have their names",
          "[core][group_record]") {
  const TemporaryDirectory directory;
  const std::filesystem::path first = directory.write("a.safetensors", archive_text('a'));
  const std::filesystem::path second = directory.write("b.safetensors", archive_text('b'));
  for (const auto& path : {first, second}) REQUIRE(::chmod(path.c_str(), 0600) == 0);
  const auto archive = system_storage().open(first, Access::ReadOnly).value();
  const auto other = system_storage().open(second, Access::ReadOnly).value();
  const std::vector<const File*> others = {other.get()};
  const auto [is_first, is_second] =
      GENERATE(std::pair(true, false), std::pair(false, true), std::pair(true, true));
  std::optional<ExchangedName> one;
  std::optional<ExchangedName> two;
  if (is_first) one.emplace(first);
  if (is_second) two.emplace(second);
  auto record = GroupRecord::create(system_storage(), first, *archive, others).value();
  REQUIRE(record.seal(kJournals, Durability::Process));
  REQUIRE(record.publish(Durability::Process));
  const FileStatus status = system_storage().status(directory.path() / record.name()).value();
  CHECK((status.mode & 07777U) == 0600);
  CHECK(status.uid == ::geteuid());
  REQUIRE(record.remove());
}
