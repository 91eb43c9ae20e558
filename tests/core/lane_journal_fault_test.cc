// A lane journal on storage that fails: commits that are undone, commits with an unknown result, and journals
// that are given up.
#include <set>
#include <string>

#include "core/journal/lane_journal.h"
#include "tests/core/journaled_archive.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a commit that fails is taken back: void, or gone for good, else nobody knows",
          "[core][lane_journal]") {
  struct Case {
    std::set<FileCall> failing;  // every call of these kinds
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
  WatchedStorage storage;
  JournaledArchive sample(storage);
  sample.prepare();
  if (has_earlier) REQUIRE(sample.commit_block('1'));
  storage.failing = failing;
  const auto committed = sample.commit_block('2');
  REQUIRE_FALSE(committed);
  CHECK(committed.error().errno_value == EIO);
  CHECK((committed.error().code != ErrorCode::CommitUnknown) == is_known);
  CHECK(sample.is_named() == is_named);
  CHECK_FALSE(sample.lane_journal->is_ready());
  CHECK(sample.lane_journal->is_settled());
  CHECK(sample.is_free());
  CHECK(content_of(sample.path) == sample.before);
}

TEST_CASE("a commit that failed once leaves no record under any name", "[core][lane_journal]") {
  const auto call = GENERATE(FileCall::Write, FileCall::Sync);
  const bool is_torn = GENERATE(false, true);
  const int earlier = GENERATE(0, 1, 2);
  CAPTURE(call, is_torn, earlier);
  FaultyStorage storage;
  JournaledArchive sample(storage);
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
  // A new journal replaces it.
  REQUIRE(sample.lane_journal->prepare());
  REQUIRE(sample.commit_block('3'));
  CHECK(sample.recovered() == sample.patched('3'));
}

TEST_CASE("a commit that fails at any call is the old content or, where nobody knows, the old or the new",
          "[core][lane_journal]") {
  const bool is_for_good = GENERATE(false, true);
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth, is_for_good);
    FaultyStorage storage;
    JournaledArchive sample(storage);
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
          "[core][lane_journal]") {
  const bool is_for_good = GENERATE(false, true);
  const auto kind = GENERATE(FileCall::Write, FileCall::Sync);
  FaultyStorage storage;
  JournaledArchive sample(storage);
  sample.prepare();
  REQUIRE(sample.commit_block('1'));
  storage.plan().set({.nth = 1, .errno_value = EIO, .kind = kind, .is_for_good = is_for_good});
  const auto settled = sample.lane_journal->settle(Durability::Power);
  REQUIRE_FALSE(settled);
  CHECK(settled.error().errno_value == EIO);
  CHECK_FALSE(sample.lane_journal->is_ready());
  CHECK(sample.is_free());
  CHECK(sample.journals() == 0);
}

TEST_CASE("a lane journal that can't be made leaves nothing behind", "[core][lane_journal]") {
  for (unsigned nth = 1;; ++nth) {
    CAPTURE(nth);
    FaultyStorage storage;
    JournaledArchive sample(storage);
    storage.plan().fail_call(nth, ENOSPC);
    const auto prepared = sample.lane_journal->prepare();
    const bool has_failed = storage.plan().failed().has_value();
    CHECK(prepared.has_value() != has_failed);
    CHECK(sample.lane_journal->is_ready() != has_failed);
    CHECK(sample.journals() == (has_failed ? 0 : 1));
    CHECK(sample.lane_journal->path().empty() == has_failed);
    storage.plan().fail_call(0, 0);
    REQUIRE(sample.lane_journal->prepare());  // the next attempt is free of it
    CHECK(sample.journals() == 1);
    if (!has_failed) break;
  }
}

TEST_CASE("where the file system has no locks no lane journal is made", "[core][lane_journal]") {
  WatchedStorage storage;
  storage.failing = {FileCall::Lock};
  storage.errno_value = GENERATE(ENOLCK, ENOSYS, EOPNOTSUPP);
  JournaledArchive sample(storage);
  sample.lane_journal->note_small_commit();
  sample.lane_journal->note_small_commit();
  CHECK(sample.lane_journal->is_wanted());
  REQUIRE(sample.lane_journal->prepare());
  CHECK_FALSE(sample.lane_journal->is_ready());
  CHECK_FALSE(sample.lane_journal->is_wanted());
  CHECK(sample.journals() == 0);
  storage.calls.clear();
  REQUIRE(sample.lane_journal->prepare());
  CHECK(storage.calls.empty());  // it is known now
  REQUIRE(sample.lane_journal->retire(Durability::Power));
}

TEST_CASE("a lock that fails otherwise is an error, and no file is made", "[core][lane_journal]") {
  WatchedStorage storage;
  storage.failing = {FileCall::Lock};
  JournaledArchive sample(storage);
  const auto prepared = sample.lane_journal->prepare();
  REQUIRE_FALSE(prepared);
  CHECK(prepared.error().errno_value == EIO);
  CHECK(sample.journals() == 0);
}
