// A store that fails at any step: the error reaches the caller, the other tensors keep their bytes, and the
// mount continues.
#include <algorithm>
#include <vector>

#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/plain.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A mount on a store that fails on request, and the mount's messages.
struct FailingMount {
  FaultyStorage storage;
  DrivenFilesystem mount{kTwoTensors, {}, storage};
  CapturedStderr captured;
};

enum class Way { Close, Sync, SynchronousWrite, Release };

/// Replaces the first tensor, and stops at the first error. Returns the errno that the program gets, or 0 if
/// every call succeeded.
int replace_first(const DrivenFilesystem& mount, int access, Way way) {
  const Ino ino = mount.ino("first");
  const int flags = access | (way == Way::SynchronousWrite ? O_DSYNC : 0);
  const auto file = mount->open(ino, flags, ::getpid());
  if (!file) return file.error().errno_value;
  int verdict = errno_of(mount->resize_by_name(ino, 0, ::getpid()));
  for (std::size_t at = 0; at < kNew.size() && verdict == 0; at += 8)
    verdict = errno_of(mount->write(**file, bytes_of(kNew.substr(at, 8)), at, 1));
  if (verdict == 0 && way == Way::Sync) verdict = errno_of(mount->sync(**file));
  if (way != Way::Release) {
    const int closed = errno_of(mount->flush(**file, 1, ::getpid()));
    if (verdict == 0) verdict = closed;
  }
  mount->release(*file);
  return verdict;
}

/// Makes each call of the replacement fail once. The tensor has its old bytes or the new ones. If no call
/// returned an error, it has the new ones, except after a release without a close. After recovery the tensor
/// can be written.
void sweep(int access, Way way, int errno_value, bool tears) {
  const CapturedStderr captured;
  unsigned failures = 0;
  for (unsigned nth = 1;; ++nth) {
    FaultyStorage storage;
    DrivenFilesystem mount(kTwoTensors, {}, storage);
    if (tears) storage.plan().tear_writes();
    storage.plan().fail_call(nth, errno_value);
    const int verdict = replace_first(mount, access, way);
    const auto failed = storage.plan().failed();
    const bool was_touched = storage.plan().has_touched_archive();
    storage.plan().fail_call(0, 0);
    CAPTURE(nth, verdict, was_touched);
    if (failed) {
      ++failures;
      CAPTURE(static_cast<int>(*failed));
      // A status call may be repeated. A commit at release can report a failure only in the log.
      const bool is_look = *failed == FileCall::Status || *failed == FileCall::PathStatus;
      if (!is_look && way != Way::Release) CHECK(verdict != 0);
      if (!was_touched) CHECK(mount.stored("first") == kOld);
    } else {
      CHECK(verdict == 0);
    }
    // Before recovery, a committed change that is incomplete in the archive is read from its journal.
    const std::string seen = mount.read("first").value_or("unreadable");
    CHECK((seen == kOld || seen == kNew));
    if (verdict == 0 && way != Way::Release) CHECK(seen == kNew);
    CHECK(mount.read("second") == kSecond);

    mount.close();
    mount.open();
    CHECK(mount.stored("first") == seen);
    CHECK(mount.read("first") == seen);
    CHECK(mount.stored("second") == kSecond);
    CHECK(std::filesystem::file_size(mount.path()) == mount.offset_of("second") + kSecond.size());
    CHECK(count_files(mount.directory().path()) == 1);
    CHECK(replace_first(mount, O_WRONLY, Way::Close) == 0);
    CHECK(mount.stored("first") == kNew);
    if (!failed) break;
  }
  CHECK(failures >= 6);
}

}  // namespace

TEST_CASE("whatever call of an isolated replacement fails, the error reaches the caller",
          "[fs][filesystem][fault]") {
  const int errno_value = GENERATE(EIO, ENOSPC, EDQUOT);
  sweep(O_WRONLY, Way::Close, errno_value, false);
  sweep(O_WRONLY, Way::Sync, errno_value, false);
  sweep(O_WRONLY, Way::SynchronousWrite, errno_value, false);
}

TEST_CASE("whatever call of a shared replacement fails, the error reaches the caller",
          "[fs][filesystem][fault]") {
  const int errno_value = GENERATE(EIO, ENOSPC, EDQUOT);
  sweep(O_RDWR, Way::Close, errno_value, false);
  sweep(O_RDWR, Way::Sync, errno_value, false);
  sweep(O_RDWR, Way::Release, errno_value, false);
}

TEST_CASE_METHOD(FailingMount, "a commit that a close was told has failed is not tried again by the release",
                 "[fs][filesystem][fault]") {
  const int access = GENERATE(O_WRONLY, O_RDWR);
  Descriptor writer(mount, "first", access);
  REQUIRE(writer.write(kNew, 0));
  storage.plan().fail_call(1, ENOSPC);
  const int verdict = errno_of(writer.flush());
  storage.plan().fail_call(0, 0);
  CHECK(verdict != 0);
  writer.release();
  CHECK(mount.stored("first") == kOld);
}

TEST_CASE("a write that fails half way is an error like others", "[fs][filesystem][fault]") {
  sweep(O_WRONLY, Way::Close, EIO, true);
  sweep(O_RDWR, Way::Sync, ENOSPC, true);
}

TEST_CASE_METHOD(FailingMount, "errors come as the store gave them", "[fs][filesystem][fault]") {
  const int errno_value = GENERATE(EIO, ENOSPC, EDQUOT);
  SECTION("the first write, which begins the journal") {
    storage.plan().fail_call(FileCall::CreateUnnamed, 1, errno_value);
    Descriptor writer(mount, "first", O_WRONLY);
    CHECK(errno_of(writer.write(kNew, 0)) == errno_value);
    CHECK(errno_of(writer.close()) == errno_value);
  }
  SECTION("write") {
    Descriptor writer(mount, "first", O_WRONLY);
    storage.plan().fail_call(FileCall::Write, 1, errno_value);
    CHECK(errno_of(writer.write(kNew, 0)) == errno_value);
    // A program that ignores the error of the first write gets the error again.
    CHECK(errno_of(writer.write(kNew, 0)) == errno_value);
    CHECK(errno_of(writer.sync()) == errno_value);
    CHECK(errno_of(writer.close()) == errno_value);
    CHECK(mount.stored("first") == kOld);
  }
  SECTION("sync of the journal at close") {
    Descriptor writer(mount, "first", O_WRONLY);
    REQUIRE(writer.write(kNew, 0));
    storage.plan().fail_call(FileCall::Sync, 1, errno_value);
    CHECK(errno_of(writer.close()) == errno_value);
    CHECK(captured.contains("not committed"));
    CHECK(captured.contains("dropped"));
    CHECK_FALSE(captured.contains("16 bytes were written, U8 [16] needs 16"));  // it was whole
  }
  SECTION("sync of the archive at close, behind the commit point") {
    Descriptor writer(mount, "first", O_WRONLY);
    REQUIRE(writer.write(kNew, 0));
    storage.plan().fail_call(FileCall::Sync, 2, errno_value);
    CHECK(errno_of(writer.close()) == errno_value);
    CHECK(captured.contains("not finished"));
    CHECK(captured.contains("the change is committed in"));
    CHECK_FALSE(captured.contains("not committed"));
    CHECK(mount.read("first") == kNew);
  }
}

TEST_CASE_METHOD(FailingMount, "a commit that is shown out of its journal gives its tensor a new generation",
                 "[fs][filesystem][fault]") {
  // One of these writes is the first one to the archive. If that write fails, the archive is as the mount
  // knows it.
  bool is_shown = false;
  for (unsigned call = 1; !is_shown; ++call) {
    REQUIRE(call < 10);
    Descriptor writer(mount, "first", O_WRONLY);
    const std::uint64_t before = mount.generation("first");
    storage.plan().fail_call(FileCall::Write, call, EIO);
    const bool is_written = writer.write(kNew, 0).has_value();
    const bool is_closed = writer.close().has_value();
    storage.plan().fail_call(0, 0);
    REQUIRE_FALSE((is_written && is_closed));
    is_shown = mount.read("first") == kNew;
    CHECK(mount.stored("first") == kOld);
    if (is_shown) CHECK(mount.generation("first") > before);
    CHECK(mount.generation("first") == mount.generation("first"));
  }
}

TEST_CASE_METHOD(FailingMount, "a commit that failed before anything was synced may be tried again by fsync",
                 "[fs][filesystem][fault]") {
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write(kNew, 0));
  storage.plan().fail_call(FileCall::List, 1, EIO);
  CHECK(errno_of(writer.sync()) == EIO);
  CHECK(mount.stored("first") == kOld);
  REQUIRE(writer.sync());
  CHECK(mount.stored("first") == kNew);
  CHECK(writer.close());
}

TEST_CASE_METHOD(FailingMount, "after a failed sync of what is staged no retry succeeds, a new writer does",
                 "[fs][filesystem][fault]") {
  {
    Descriptor writer(mount, "first", O_RDWR);
    REQUIRE(writer.write(kNew, 0));
    storage.plan().fail_call(FileCall::Sync, 1, EIO);
    CHECK(errno_of(writer.sync()) == EIO);
    CHECK(errno_of(writer.sync()) == EIO);
    CHECK(errno_of(writer.close()) == EIO);
  }
  CHECK(mount.stored("first") == kOld);
  CHECK(mount.read("first") == kOld);
  Descriptor again(mount, "first", O_RDWR);
  REQUIRE(again.write(kNew, 0));
  CHECK(again.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(FailingMount,
                 "after a failed sync of the archive the new content shows, and nothing is written any more",
                 "[fs][filesystem][fault]") {
  {
    Descriptor writer(mount, "first", O_WRONLY);
    REQUIRE(writer.write(kNew, 0));
    storage.plan().fail_call(FileCall::Sync, 2, EIO);
    CHECK(errno_of(writer.close()) == EIO);
    CHECK(mount.read("first") == kNew);
    CHECK(mount.read("second") == kSecond);
    Descriptor other(mount, "second", O_WRONLY);
    REQUIRE(other.write(kNew, 0));
    CHECK(errno_of(other.close()) == EIO);
  }
  CHECK(captured.contains("stfs recover"));
  // The header shares a block with the first tensor. Attributes still come from the table.
  CHECK(mount.attribute("first", "dtype") == "U8");
  mount.close();
  mount.open();
  CHECK(mount.stored("first") == kNew);
  CHECK(mount.stored("second") == kSecond);
}

TEST_CASE_METHOD(FailingMount,
                 "a failing read of the archive is told to its reader, and the next one goes on",
                 "[fs][filesystem][fault]") {
  CHECK(mount.read("first") == kOld);
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write("new", 0));
  storage.plan().fail_call(FileCall::Read, 1, EIO);
  CHECK(errno_of(mount.read("first")) == EIO);
  CHECK(mount.read("first") == "newAAAAAAAAAAAAA");
}

TEST_CASE_METHOD(FailingMount, "a look for changes that fails changes nothing and is logged",
                 "[fs][filesystem][fault]") {
  storage.plan().fail_call(FileCall::Status, 1, EIO);
  CHECK_FALSE(mount.notices_change());
  CHECK(captured.contains("injected fault"));
  CHECK(mount.read("first") == kOld);
}

TEST_CASE_METHOD(FailingMount,
                 "a store that goes on failing each look is logged once, and again when it fails anew",
                 "[fs][filesystem][fault]") {
  const auto look = [&](bool fails) {
    if (fails) storage.plan().fail_call(FileCall::Read, 1, EIO);
    CHECK(mount->check_for_change().is_unknown == fails);
    const std::string text = captured.text();
    std::size_t lines = 0;
    for (std::size_t at = 0; (at = text.find("injected fault", at)) != std::string::npos; ++at) ++lines;
    return lines;
  };
  mount.overwrite(mount.offset_of("first"), kNew);
  CHECK(look(true) == 1);
  CHECK(look(true) == 1);
  CHECK(look(false) == 1);
  mount.overwrite(mount.offset_of("first"), kOld);
  CHECK(look(true) == 2);
}

TEST_CASE(
    "a look that fails is looked at again; one that succeeds leaves no journal that others have finished",
    "[fs][filesystem][fault]") {
  const std::string foreign = "of someone else.";
  int unknown = 0;
  bool has_failed = true;
  for (int nth = 1; has_failed; ++nth) {
    CAPTURE(nth);
    FailingMount failing;
    DrivenFilesystem& mount = failing.mount;
    {
      Descriptor writer(mount, "first", O_WRONLY);
      REQUIRE(writer.write(kNew, 0));
      failing.storage.plan().fail_call(FileCall::Sync, 2, EIO);
      CHECK(errno_of(writer.close()) == EIO);
    }
    failing.storage.plan().fail_call(0, 0);
    CHECK(mount.read("first") == kNew);  // out of the journal
    REQUIRE(Archive::open(mount->archive().path(), Access::ReadWrite));
    mount.overwrite(mount.offset_of("first"), foreign);
    failing.storage.plan().fail_call(nth, EIO);
    const auto change = mount->check_for_change();
    has_failed = failing.storage.plan().failed().has_value();
    failing.storage.plan().fail_call(0, 0);
    unknown += static_cast<int>(change.is_unknown);
    if (change.is_unknown) CHECK_FALSE(mount->check_for_change().is_unknown);
    CHECK(mount.read("first") == foreign);
  }
  CHECK(unknown > 2);
}

TEST_CASE("what others have changed is told or still to be noticed, whichever read of a commit fails",
          "[fs][filesystem][fault]") {
  for (unsigned nth = 1; nth < 8; ++nth) {
    CAPTURE(nth);
    FailingMount failing;
    DrivenFilesystem& mount = failing.mount;
    std::vector<Stale> told;
    mount->tell_stale_to([&](Stale stale) { told.push_back(stale); });
    const Ino first = mount.ino("first");
    const auto is_of_first = [&](const Stale& stale) {
      return stale.what == Stale::What::Content && stale.first <= first && first <= stale.last;
    };
    mount.overwrite(mount.offset_of("first"), kNew);
    Descriptor writer(mount, "second", O_WRONLY);
    REQUIRE(writer.write(kNew, 0));
    failing.storage.plan().fail_call(FileCall::Read, nth, EIO);
    const auto closed = writer.close();
    failing.storage.plan().fail_call(0, 0);
    const bool is_told = std::ranges::any_of(told, is_of_first) || (closed && is_of_first(*closed));
    CHECK((is_told || mount.notices_change()));
    CHECK(mount.read("first") == kNew);
  }
}

TEST_CASE_METHOD(FailingMount,
                 "a header that can't be read at a look is looked at again, and is nobody's change",
                 "[fs][filesystem][fault]") {
  mount.overwrite(mount.offset_of("first"), kNew);
  storage.plan().fail_call(FileCall::Read, 1, EIO);
  const auto change = mount->check_for_change();
  CHECK(storage.plan().failed() == FileCall::Read);
  CHECK(change.is_unknown);
  CHECK_FALSE(change.is_outdated);
  CHECK(mount.read("second") == kSecond);
  CHECK(mount.notices_change());
  CHECK(mount.read("first") == kNew);
  // A commit that can't read the header returns the store's error.
  mount.overwrite(mount.offset_of("first"), kOld);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  storage.plan().fail_call(FileCall::Read, 1, EIO);
  CHECK(errno_of(writer.sync()) == EIO);
  CHECK(errno_of(writer.close()) == 0);
  CHECK(mount.read("second") == kNew);
}
