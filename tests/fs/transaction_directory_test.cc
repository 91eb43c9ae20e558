// `.safetensors/transactions`: every rule of fs/write/transaction_directory.h, through the file system.
#include "fs/write/transaction_directory.h"

#include <chrono>
#include <optional>
#include <thread>

#include "tests/fs/transacted.h"
#include "tests/support/catch.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/planted_journal.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a file of a transaction that was read is stale with its tensor, once",
          "[fs][transaction_directory]") {
  const Transacted at;
  const Ino transaction = at.begin();
  const Ino file = at.mount.ino("first", transaction);
  REQUIRE(at.read(transaction, "first") == kOld);
  REQUIRE(at.read(transaction, "second") == kSecond);
  Descriptor writer(at.mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  const auto committed = writer.close();
  REQUIRE(committed);
  INFO(at.captured.text());
  REQUIRE(committed->what != Stale::What::Nothing);
  const auto stale = at.mount->stale_views(*committed);
  REQUIRE(stale.size() == 1);
  CHECK(stale.front().first == file);
  CHECK(stale.front().what == Stale::What::Content);
  CHECK(at.mount->stale_views(*committed).empty());
  CHECK(at.read(transaction, "first") == kNew);
}

TEST_CASE("what a killed writer has staged leaves the pages of a transaction's file",
          "[fs][transaction_directory][close]") {
  const Transacted at;
  const Ino file = at.mount.ino("first", at.begin());
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const auto opened = at.mount->open(file, O_RDWR, killed.pid());
  REQUIRE(opened);
  REQUIRE(at.mount->write(**opened, bytes_of("half"), 0, Caller(5, killed.pid())));
  const auto flushed = at.mount->flush(**opened, 5, killed.pid());
  REQUIRE(flushed);
  CHECK(flushed->first == file);
  CHECK(flushed->what == Stale::What::Content);
  at.mount->release(*opened);
}

TEST_CASE("the views' directory is reachable by name and not listed", "[fs][transaction_directory]") {
  const Transacted t;
  CHECK(t.mount.ino(".safetensors") == kViews);
  CHECK(t.list(kRootIno) == Names{"first", "second"});
  CHECK(t.list(kViews) == Names{"transactions", "committed", "npy", "slice", "float32", "header.json",
                                "metadata.json", "stats.json", "archive.safetensors", "log", "pretrained"});
  CHECK(t.mount.ino("transactions", kViews) == kTransactions);
  CHECK(t.mount.ino("committed", kViews) == kCommitted);
  CHECK(errno_of(t.mount->lookup(kViews, "absent")) == ENOENT);
}

TEST_CASE_METHOD(Begun, "a transaction lists what is staged, and shows every tensor",
                 "[fs][transaction_directory]") {
  CHECK(t.list(kTransactions) == Names{"T"});
  CHECK(t.list(directory).empty());
  CHECK(t.read(directory, "first") == kOld);
  CHECK(t.list(directory).empty());
  CHECK(t.stage(directory, "second") == 0);
  CHECK(t.list(directory) == Names{"second"});
  CHECK(t.read(directory, "second") == kNew);
  CHECK(t.mount.read("second") == kSecond);
  CHECK(t.is_untouched());
}

TEST_CASE_METHOD(Begun, "the move to committed changes all tensors at once", "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "first") == 0);
  CHECK(t.stage(directory, "second") == 0);
  const auto before = t.mount.generation("first");
  const auto stale = t.mount->rename(kTransactions, "T", kCommitted, "T");
  REQUIRE(stale);
  CHECK(std::ranges::count(stale->stale, Stale::What::Content, &Stale::what) == 2);
  CHECK(t.mount.stored("first") == kNew);
  CHECK(t.mount.stored("second") == kNew);
  CHECK(t.mount.read("first") == kNew);
  CHECK(t.mount.generation("first") > before);
  CHECK(t.list(kTransactions).empty());
  CHECK(t.list(kCommitted) == Names{"T"});
  CHECK(errno_of(t.mount->lookup(directory, "first")) == ENOENT);
  CHECK(errno_of(t.mount->remove_directory(kCommitted, "T")) == 0);
  CHECK(t.list(kCommitted).empty());
}

TEST_CASE_METHOD(Begun, "without O_TRUNC a file starts as the tensor is: a part can be patched, twice",
                 "[fs][transaction_directory]") {
  for (const std::uint64_t at : {3U, 9U}) {
    Member member(t.mount, directory, "first", O_RDWR);
    CHECK(member.write("xy", at) == 0);
    CHECK(member.close() == 0);
  }
  CHECK(t.read(directory, "first") == "AAAxyAAAAxyAAAAA");
  CHECK(t.commit() == 0);
  CHECK(t.mount.stored("first") == "AAAxyAAAAxyAAAAA");
  CHECK(t.mount.stored("second") == kSecond);
}

TEST_CASE_METHOD(Begun, "a short tensor fails at its close and at the commit, and may be completed",
                 "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "second") == 0);
  CHECK(t.stage(directory, "first", "short") == EINVAL);
  CHECK(t.commit() == ENODATA);
  CHECK(t.captured.contains("5 bytes were written, U8 [16] needs 16"));
  CHECK(t.is_untouched());
  CHECK(t.list(directory) == Names{"first", "second"});
  SECTION("by another try") {
    CHECK(t.stage(directory, "first") == 0);
  }
  SECTION("by the rest") {
    Member member(t.mount, directory, "first");
    CHECK(member.write(kNew, 0) == 0);
    CHECK(member.close() == 0);
  }
  CHECK(t.commit() == 0);
  CHECK(t.mount.stored("first") == kNew);
  CHECK(t.mount.stored("second") == kNew);
}

TEST_CASE_METHOD(Begun, "while a tensor is open for writing its transaction is busy",
                 "[fs][transaction_directory]") {
  {
    Member member(t.mount, directory, "first");
    CHECK(member.write(kNew, 0) == 0);
    CHECK(t.commit() == EBUSY);
    CHECK(errno_of(t.mount->remove_file(directory, "first")) == EBUSY);
    CHECK(t.captured.contains("\"first\" is still open for writing"));
    CHECK(member.close() == 0);
  }
  CHECK(t.commit() == 0);
  CHECK(t.mount.stored("first") == kNew);
}

TEST_CASE_METHOD(
    Begun, "who closes and moves or removes at once is not refused: the kernel tells of the close later",
    "[fs][transaction_directory]") {
  const auto release_later_than = [&](const auto& act) {
    std::optional<Member> member(std::in_place, t.mount, directory, "first");
    CHECK(member->write(kNew, 0) == 0);
    std::thread kernel([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      member.reset();
    });
    const int result = act();
    kernel.join();
    return result;
  };
  CHECK(release_later_than([&] { return errno_of(t.mount->remove_file(directory, "first")); }) == 0);
  CHECK(t.list(directory).empty());
  CHECK(release_later_than([&] { return t.commit(); }) == 0);
  CHECK(t.mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Begun, "files removed one by one and their directory are a rollback",
                 "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "first") == 0);
  CHECK(errno_of(t.mount->remove_directory(kTransactions, "T")) == ENOTEMPTY);
  CHECK(errno_of(t.mount->remove_file(directory, "absent")) == ENOENT);
  CHECK(errno_of(t.mount->remove_file(directory, "first")) == 0);
  CHECK(t.read(directory, "first") == kOld);
  CHECK(errno_of(t.mount->remove_directory(kTransactions, "T")) == 0);
  CHECK(errno_of(t.mount->lookup(kTransactions, "T")) == ENOENT);
  CHECK(errno_of(t.mount->attributes(directory)) == ENOENT);
  CHECK(t.is_untouched());
  CHECK(t.begin() != directory);  // numbers are never used again
}

TEST_CASE_METHOD(Begun, "a tensor taken out of a transaction is not committed",
                 "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "first") == 0);
  CHECK(t.stage(directory, "second") == 0);
  CHECK(errno_of(t.mount->remove_file(directory, "first")) == 0);
  CHECK(t.commit() == 0);
  CHECK(t.mount.stored("first") == kOld);
  CHECK(t.mount.stored("second") == kNew);
}

TEST_CASE_METHOD(Begun, "a tensor that others have changed since is a conflict",
                 "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "first") == 0);
  CHECK(t.stage(directory, "second") == 0);
  const std::string other(16, 'z');
  SECTION("through the mount") {
    Descriptor writer(t.mount, "first", O_WRONLY);
    REQUIRE(writer.write(other, 0));
    CHECK(writer.close());
  }
  SECTION("behind its back, noticed before") {
    t.mount.overwrite(t.mount.offset_of("first"), other);
    CHECK(t.mount.notices_change());
  }
  SECTION("behind its back, not noticed yet") {
    t.mount.overwrite(t.mount.offset_of("first"), other);
  }
  SECTION("by another transaction") {
    const Ino faster = t.begin("U");
    CHECK(t.stage(faster, "first", other) == 0);
    CHECK(t.commit("U") == 0);
  }
  CHECK(t.commit() == ESTALE);
  CHECK(t.captured.contains("\"first\" was changed by another program"));
  CHECK(t.mount.stored("first") == other);
  CHECK(t.mount.stored("second") == kSecond);
  CHECK(t.list(kTransactions) == Names{"T"});
}

TEST_CASE_METHOD(Begun, "a change that changes nothing, or another tensor, is no conflict",
                 "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "first") == 0);
  t.mount.overwrite(t.mount.offset_of("first"), kOld);
  t.mount.overwrite(t.mount.offset_of("second"), kNew);
  CHECK(t.mount.notices_change());
  CHECK(t.commit() == 0);
  CHECK(t.mount.stored("first") == kNew);
  CHECK(t.mount.stored("second") == kNew);
}

TEST_CASE_METHOD(Begun, "only transactions are made, moved and removed, and only below their directory",
                 "[fs][transaction_directory]") {
  CHECK(t.stage(directory, "first") == 0);
  CHECK(errno_of(t.mount->make_directory(kRootIno, "x")) == EPERM);
  CHECK(errno_of(t.mount->make_directory(kViews, "x")) == EPERM);
  CHECK(errno_of(t.mount->make_directory(kCommitted, "x")) == EPERM);
  CHECK(errno_of(t.mount->make_directory(directory, "x")) == EPERM);
  CHECK(errno_of(t.mount->make_directory(kTransactions, "T")) == EEXIST);
  CHECK(errno_of(t.mount->remove_directory(kViews, "transactions")) == EPERM);
  CHECK(errno_of(t.mount->rename(kRootIno, "first", directory, "first")) == EPERM);
  CHECK(errno_of(t.mount->rename(directory, "first", kRootIno, "third")) == EPERM);
  CHECK(errno_of(t.mount->rename(directory, "first", kTransactions, "third")) == EPERM);
  CHECK(errno_of(t.mount->rename(kTransactions, "absent", kCommitted, "x")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(directory, "no such tensor")) == ENOENT);
  CHECK(errno_of(t.mount->rename(kTransactions, "T", kTransactions, "U")) == 0);
  CHECK(t.list(kTransactions) == Names{"U"});
  CHECK(t.commit("U") == 0);
  CHECK(errno_of(t.mount->rename(kCommitted, "U", kTransactions, "U")) == EPERM);
}

TEST_CASE("what was never closed when the mount ends is rolled back and logged",
          "[fs][transaction_directory]") {
  const Transacted t;
  CHECK(t.stage(t.begin(), "first") == 0);
  t.mount->end();
  CHECK(t.captured.contains("transaction T was not committed when the mount ended"));
  CHECK(t.is_untouched());
}

TEST_CASE("a transaction that is committed and can't be applied shows whole, and nothing is written any more",
          "[fs][transaction_directory]") {
  FaultyStorage storage;
  Transacted t({}, storage);
  const Ino directory = t.begin();
  CHECK(t.stage(directory, "first") == 0);
  CHECK(t.stage(directory, "second") == 0);
  // The first sync is the journal's, the second one is the archive's.
  const bool is_for_good = GENERATE(false, true);
  storage.plan().set({.nth = 2, .errno_value = EIO, .kind = FileCall::Sync, .is_for_good = is_for_good});
  CHECK(t.commit() == EIO);
  storage.plan().fail_call(0, 0);
  CHECK(t.mount.read("first") == kNew);
  CHECK(t.mount.read("second") == kNew);
  const Ino other = t.begin("U");
  CHECK(t.stage(other, "first", kOld) == 0);
  CHECK(t.commit("U") == EIO);
  CHECK(t.mount.read("first") == kNew);
  t.mount.close();
  t.mount.open();
  CHECK(t.mount.stored("first") == kNew);
  CHECK(t.mount.stored("second") == kNew);
}

TEST_CASE("a read-only mount reads what a committed journal promises", "[fs][transaction_directory]") {
  const std::string old(3 * kBlockBytes, 'o');
  const std::string promised(kBlockBytes, 'p');
  DrivenFilesystem mount({{"first", old}, {"second", old}});
  mount.close();
  const auto journal = plant_journal(mount.path(), kBlockBytes, promised);
  mount.open(kReadOnly);
  const std::uint64_t at = kBlockBytes - mount.offset_of("first");
  std::string expected = old;
  expected.replace(at, promised.size(), promised);
  CHECK(mount.read("first") == expected);
  CHECK(mount.read("second") == old);
  CHECK(mount.stored("first") == old);
  CHECK(std::filesystem::exists(journal));
}

TEST_CASE("committed/ shows the last transactions only", "[fs][transaction_directory]") {
  const Transacted t;
  constexpr std::size_t kMost = TransactionDirectory::kMostCommitted;
  Ino first = 0;
  for (std::size_t at = 0; at < kMost + 10; ++at) {
    const Ino made = t.begin(fmt::format("T{}", at));
    if (at == 0) first = made;
    REQUIRE(t.commit(fmt::format("T{}", at)) == 0);
  }
  const Names shown = t.list(kCommitted);
  CHECK(shown.size() == kMost);
  CHECK(kMost == 64);
  CHECK(shown.front() == "T10");
  CHECK(shown.back() == fmt::format("T{}", kMost + 9));
  CHECK(errno_of(t.mount->lookup(kCommitted, "T9")) == ENOENT);
  CHECK(errno_of(t.mount->attributes(first)) == ENOENT);
  // A removed transaction makes room for another one.
  CHECK(errno_of(t.mount->remove_directory(kCommitted, "T20")) == 0);
  CHECK(t.begin("last") != 0);
  CHECK(t.commit("last") == 0);
  CHECK(t.list(kCommitted).front() == "T10");
}

TEST_CASE("a name can be committed again: the new one takes the place of the old",
          "[fs][transaction_directory]") {
  const Transacted t;
  for (const std::string content : {"0123456789abcdef", "fedcba9876543210"}) {
    const Ino directory = t.begin();
    REQUIRE(t.stage(directory, "first", content) == 0);
    CHECK(t.commit() == 0);
    CHECK(t.mount.stored("first") == content);
    CHECK(t.list(kCommitted) == Names{"T"});
    CHECK(t.mount.ino("T", kCommitted) == directory);
  }
  // If the new commit is refused, the old transaction stays.
  const Ino directory = t.begin();
  REQUIRE(t.stage(directory, "first", "short") == EINVAL);
  CHECK(t.commit() == ENODATA);
  CHECK(t.list(kCommitted) == Names{"T"});
  CHECK(t.list(kTransactions) == Names{"T"});
}

TEST_CASE("messages name a file of a transaction by its path", "[fs][transaction_directory]") {
  const Transacted t;
  const Ino one = t.begin("one");
  const Ino two = t.begin("two");
  const auto has_path = [&](Ino ino, std::string_view path) {
    return t.mount->label_of(ino, "").ends_with(fmt::format(": .safetensors/{}", path));
  };
  CHECK(has_path(kTransactions, "transactions"));
  CHECK(has_path(one, "transactions/one"));
  CHECK(has_path(two, "transactions/two"));
  CHECK(has_path(t.mount.ino("first", one), "transactions/one/first"));
  CHECK(has_path(t.mount.ino("second", two), "transactions/two/second"));
}
