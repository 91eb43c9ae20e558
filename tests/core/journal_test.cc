// Tests one journal's file, from the staging of bytes to its removal.
#include "core/journal/journal.h"

#include <filesystem>

#include "core/journal/journal_scan.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/gone_archive.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Returns a record of one block of an archive.
JournalRecord record_of(const Journal&, std::uint64_t journal_offset) {
  JournalRecord record;
  record.archive.size_bytes = kBlockBytes;
  record.ranges.push_back(
      {.archive = {0, kBlockBytes}, .journal_offset = journal_offset, .new_hashes = {1}, .old_hashes = {2}});
  return record;
}

/// A journal on a store that fails on request.
struct FailingJournal {
  TemporaryDirectory directory;
  FaultyStorage storage;
  std::unique_ptr<Journal> journal = Journal::create(storage, directory / "m", gone_archive()).value();
};

}  // namespace

TEST_CASE("a journal has no name before it is published, and none when it is retired", "[core][journal]") {
  const TemporaryDirectory directory;
  const auto durability = GENERATE(Durability::Power, Durability::Process);
  auto journal = Journal::create(system_storage(), directory / "m.safetensors", gone_archive()).value();
  const std::uint64_t region = journal->allocate(10);
  CHECK(region == kBlockBytes);
  CHECK(journal->allocate(kBlockBytes + 1) == 2 * kBlockBytes);
  CHECK(journal->allocate(1) == 4 * kBlockBytes);
  CHECK(count_files(directory.path()) == 0);
  REQUIRE(journal->seal(record_of(*journal, region), durability));
  CHECK(count_files(directory.path()) == 0);
  REQUIRE(journal->publish(durability));
  CHECK(std::filesystem::exists(journal->path()));
  CHECK(journal->path().filename().string().starts_with(".m.safetensors.stj."));
  CHECK(journal->path().extension() != ".safetensors");
  CHECK_FALSE(journal->spoiled());
  REQUIRE(journal->retire(durability));
  CHECK(count_files(directory.path()) == 0);
}

TEST_CASE("a journal that another user has moved away promises nothing when it comes back",
          "[core][journal]") {
  const TemporaryDirectory directory;
  const auto durability = GENERATE(Durability::Power, Durability::Process);
  auto journal = Journal::create(system_storage(), directory / "m.safetensors", gone_archive()).value();
  REQUIRE(journal->seal(record_of(*journal, journal->allocate(10)), durability));
  REQUIRE(journal->publish(durability));
  const std::filesystem::path away = directory.path() / "away";
  std::filesystem::rename(journal->path(), away);
  static_cast<void>(journal->retire(durability));  // its name does not exist any more
  const auto file = system_storage().open(away, Access::ReadOnly).value();
  CHECK(is_void(*file, file->size_bytes().value()).value());
}

TEST_CASE("a published journal reads back as it was sealed", "[core][journal]") {
  const TemporaryDirectory directory;
  auto journal = Journal::create(system_storage(), directory / "m", gone_archive()).value();
  const std::uint64_t region = journal->allocate(kBlockBytes);
  const std::string fresh(kBlockBytes, 'x');
  REQUIRE(journal->file().write(std::as_bytes(std::span(fresh)), region));
  REQUIRE(journal->seal(record_of(*journal, region), Durability::Power));
  REQUIRE(journal->seal(record_of(*journal, region), Durability::Power));  // may be repeated
  REQUIRE(journal->publish(Durability::Power));
  const std::string bytes = content_of(journal->path());
  const auto head = decode_head(std::string_view(bytes).substr(0, kBlockBytes));
  REQUIRE(head);
  CHECK(head->id == journal->id());
  CHECK(head->record.end() <= bytes.size());
  const auto record = decode_record(
      std::string_view(bytes).substr(head->record.offset, head->record.size_bytes), bytes.size());
  REQUIRE(record);
  CHECK(record->id == journal->id());
  CHECK(record->owner_pid == ::getpid());
  CHECK(bytes.substr(region, kBlockBytes) == std::string(kBlockBytes, 'x'));
}

TEST_CASE("while its owner lives a journal is locked, then no more", "[core][journal]") {
  const TemporaryDirectory directory;
  auto journal = Journal::create(system_storage(), directory / "m", gone_archive()).value();
  REQUIRE(journal->seal(record_of(*journal, journal->allocate(kBlockBytes)), Durability::Process));
  REQUIRE(journal->publish(Durability::Process));
  const auto other = system_storage().open(journal->path(), Access::ReadWrite);
  REQUIRE(other);
  CHECK((*other)->try_lock({0, 1}, LockKind::Exclusive)->has_value());
  journal.reset();
  CHECK_FALSE((*other)->try_lock({0, 1}, LockKind::Exclusive)->has_value());
}

TEST_CASE_METHOD(FailingJournal, "a failed sync spoils a journal for good", "[core][journal]") {
  const std::uint64_t region = journal->allocate(kBlockBytes);
  storage.plan().fail_call(FileCall::Sync, 1, ENOSPC);
  CHECK(errno_of(journal->seal(record_of(*journal, region), Durability::Power)) == ENOSPC);
  REQUIRE(journal->spoiled());
  CHECK(errno_of(journal->seal(record_of(*journal, region), Durability::Power)) == ENOSPC);
  CHECK(errno_of(journal->publish(Durability::Power)) == ENOSPC);
  CHECK(count_files(directory.path()) == 0);
}

TEST_CASE_METHOD(FailingJournal, "a publication that fails leaves no name", "[core][journal]") {
  REQUIRE(journal->seal(record_of(*journal, journal->allocate(kBlockBytes)), Durability::Power));
  const auto call = GENERATE(FileCall::Publish, FileCall::SyncDirectory);
  storage.plan().fail_call(call, 1, EIO);
  const auto published = journal->publish(Durability::Power);
  REQUIRE_FALSE(published);
  CHECK(published.error().code != ErrorCode::CommitUnknown);
  CHECK(count_files(directory.path()) == 0);
  CHECK(errno_of(journal->publish(Durability::Power)) == EIO);
  CHECK(count_files(directory.path()) == 0);
}

TEST_CASE_METHOD(FailingJournal, "a publication that can't even be taken back says that nobody knows",
                 "[core][journal]") {
  REQUIRE(journal->seal(record_of(*journal, journal->allocate(kBlockBytes)), Durability::Power));
  storage.plan().set({.nth = 2, .errno_value = EIO, .kind = {}, .is_for_good = true});
  const auto published = journal->publish(Durability::Power);
  REQUIRE_FALSE(published);
  CHECK(published.error().code == ErrorCode::CommitUnknown);
}

TEST_CASE("a journal where none may be made is the store's error", "[core][journal]") {
  const TemporaryDirectory directory;
  CHECK(errno_of(Journal::create(system_storage(), directory / "absent/m", gone_archive())) == ENOENT);
}

TEST_CASE("a journal refuses every call that its state does not allow, and stays as it is",
          "[core][journal]") {
  using State = Journal::State;
  const TemporaryDirectory directory;
  const auto durability = GENERATE(Durability::Power, Durability::Process);
  auto journal = Journal::create(system_storage(), directory / "m", gone_archive()).value();
  const std::uint64_t region = journal->allocate(kBlockBytes);
  REQUIRE(journal->write(std::vector<std::byte>(kBlockBytes), region));
  const auto seal = [&] { return journal->seal(record_of(*journal, region), durability); };
  const auto refuses = [&](const Result<void>& done, State state) {
    REQUIRE_FALSE(done);
    CHECK(done.error().message.starts_with("internal error"));
    CHECK(journal->state() == state);
  };
  const auto refuses_what_ends = [&](State state) {
    refuses(journal->retire(durability), state);
    CHECK(journal->give_up() == nullptr);
    journal->take_back(durability);
    CHECK(journal->state() == state);
  };
  const auto refuses_all = [&](State state) {
    refuses(seal(), state);
    refuses(journal->publish(durability), state);
    refuses_what_ends(state);
  };
  CHECK(journal->state() == State::Staging);
  refuses(journal->publish(durability), State::Staging);
  refuses_what_ends(State::Staging);
  REQUIRE(seal());
  REQUIRE(seal());
  CHECK(journal->state() == State::Sealed);
  refuses_what_ends(State::Sealed);
  REQUIRE(journal->publish(durability));
  refuses(seal(), State::Committed);
  refuses(journal->publish(durability), State::Committed);
  SECTION("retired") {
    REQUIRE(journal->retire(durability));
    refuses_all(State::Gone);
  }
  SECTION("given up") {
    CHECK(journal->give_up() != nullptr);
    refuses_all(State::GivenUp);
  }
  SECTION("taken back, and committed all the same") {
    journal->take_back(durability);
    CHECK(journal->state() == State::TakenBack);
    refuses(journal->publish(durability), State::TakenBack);
    refuses_what_ends(State::TakenBack);
    REQUIRE(seal());
    REQUIRE(journal->publish(durability));
    REQUIRE(journal->retire(durability));
    CHECK(count_files(directory.path()) == 0);
  }
}

TEST_CASE("a journal that a lane has committed is not sealed again", "[core][journal]") {
  const TemporaryDirectory directory;
  LaneJournal lanes(system_storage(), directory / "m", gone_archive());
  REQUIRE(lanes.prepare());
  auto journal =
      Journal::create(system_storage(), directory / "m", gone_archive(), Journal::Place::Memory).value();
  const std::uint64_t region = journal->allocate(kBlockBytes);
  REQUIRE(journal->write(std::vector<std::byte>(kBlockBytes), region));
  const auto seal = [&] { return journal->seal(record_of(*journal, region), Durability::Power, {}, &lanes); };
  REQUIRE(seal());
  CHECK_FALSE(seal());
  CHECK_FALSE(journal->retire(Durability::Power));
  REQUIRE(journal->publish(Durability::Power));
  CHECK_FALSE(journal->publish(Durability::Power));
  REQUIRE(journal->retire(Durability::Power));
  CHECK_FALSE(journal->retire(Durability::Power));
  REQUIRE(lanes.retire(Durability::Power));
}
