// No memory at each allocation of a change: the change is made or not, nothing hangs or stays behind, and the
// next change works.
#include <functional>
#include <optional>
#include <string>

#include "fs/model/mounted_model.h"
#include "tests/fs/transacted.h"
#include "tests/support/allocation_faults.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Returns the errno of an act without memory. The mount's handlers answer ENOMEM to an exception
/// (fuse_handlers.h).
int errno_without_memory(std::uint64_t nth, bool is_for_good, const std::function<int()>& act,
                         bool& has_failed) {
  int verdict = 0;
  const AllocationFaults faults(nth, is_for_good);
  try {
    verdict = act();
  } catch (const std::bad_alloc&) {
    verdict = ENOMEM;
  }
  has_failed = AllocationFaults::has_failed();
  return verdict;
}

/// Makes each allocation of act(mount) fail once, each time on a new mount. Then calls check(mount, verdict).
void fail_each_allocation(const std::function<void(Transacted&)>& prepare,
                          const std::function<int(Transacted&)>& act,
                          const std::function<void(Transacted&, int)>& check) {
  const bool is_for_good = GENERATE(false, true);
  bool has_failed = true;
  std::uint64_t nth = 1;
  for (; has_failed; ++nth) {
    CAPTURE(nth, is_for_good);
    Transacted t;
    prepare(t);
    const int verdict = errno_without_memory(
        nth, is_for_good, [&] { return act(t); }, has_failed);
    if (!has_failed) CHECK(verdict == 0);
    check(t, verdict);
  }
  CHECK(nth > 5);
}

/// Returns a tensor's bytes as a new mount shows them.
std::string read_anew(Transacted& t, std::string_view name) {
  t.mount.close();
  t.mount.open();
  return t.mount.read(name).value_or("unreadable");
}

Result<Stale> write_first(const Transacted& t, std::string_view bytes) {
  Descriptor writer(t.mount, "first", O_WRONLY);
  if (auto written = writer.write(bytes, 0); !written) return written;
  return writer.close();
}

}  // namespace

TEST_CASE("a close without memory commits or does not, and the tensor can be written again",
          "[fs][filesystem][memory]") {
  std::unique_ptr<Descriptor> writer;
  fail_each_allocation(
      [&](Transacted& t) {
        writer = std::make_unique<Descriptor>(t.mount, "first", O_WRONLY);
        REQUIRE(writer->write(kNew, 0));
      },
      [&](Transacted&) { return errno_of(writer->flush()); },
      [&](Transacted& t, int verdict) {
        writer->release();
        writer.reset();
        const std::string seen = t.mount.read("first").value_or("unreadable");
        CHECK((seen == kOld || seen == kNew));
        if (verdict == 0) CHECK(seen == kNew);
        CHECK(t.mount.read("second") == kSecond);
        // Behind its commit point the change is in its journal. Then the archive takes no writes before a
        // recovery.
        const bool is_in_journal = verdict != 0 && seen == kNew;
        if (is_in_journal) CHECK(read_anew(t, "first") == kNew);
        CHECK(write_first(t, kSecond));
        CHECK(t.mount.read("first") == kSecond);
        CHECK(read_anew(t, "first") == kSecond);
      });
}

TEST_CASE("a transaction's commit without memory is made or not, and can be repeated",
          "[fs][filesystem][memory]") {
  fail_each_allocation(
      [](Transacted& t) {
        const Ino directory = t.begin();
        REQUIRE(t.stage(directory, "first") == 0);
        REQUIRE(t.stage(directory, "second") == 0);
      },
      [](Transacted& t) { return t.commit(); },
      [](Transacted& t, int verdict) {
        const std::string first = t.mount.read("first").value_or("unreadable");
        CHECK(t.mount.read("second").value_or("unreadable") == (first == kNew ? kNew : kSecond));
        CHECK((first == kOld || first == kNew));
        if (verdict == 0) CHECK(first == kNew);
        // The commit does not return EBUSY, because no other commit of the transaction runs.
        if (verdict != 0 && first == kOld) CHECK(t.commit() == 0);
        CHECK(read_anew(t, "first") == kNew);
        CHECK(t.mount.read("second") == kNew);
        const Ino next = t.begin("next");
        CHECK(t.stage(next, "first", kSecond) == 0);
        CHECK(t.commit("next") == 0);
        CHECK(t.mount.read("first") == kSecond);
      });
}

namespace {

/// Makes each allocation of an edit fail. A new mount shows the edit or does not show it, and can be edited.
/// @param is_made  returns whether the mount shows the edit.
void check_edit(const std::function<int(Transacted&)>& edit,
                const std::function<bool(Transacted&)>& is_made) {
  const Model* before = nullptr;
  std::optional<Snapshot::Pin> call;
  fail_each_allocation(
      [&](Transacted& t) {
        call = t.mount->pin();
        before = &t.mount->model();
      },
      edit,
      [&](Transacted& t, int verdict) {
        // A call that began before the edit still has its model.
        CHECK(before->tensors().size() == 2);
        call.reset();
        // This mount may be unable to show its edit until the model is opened again.
        const auto read_on = t.mount.read("second");
        CAPTURE(verdict, errno_of(read_on));
        if (read_on || errno_of(read_on) != EIO) CHECK(read_on == kSecond);
        CHECK(read_anew(t, "second") == kSecond);
        const bool shows = is_made(t);
        if (verdict == 0) CHECK(shows);
        CHECK(errno_of(t.mount->rename(kRootIno, "second", kRootIno, "other")) == 0);
        CHECK(read_anew(t, "other") == kSecond);
        CHECK(is_made(t) == shows);
      });
}

bool has(const Transacted& t, std::string_view name) {
  return t.mount->lookup(kRootIno, name).has_value();
}

}  // namespace

TEST_CASE("a rename without memory is made or not, and the next one works", "[fs][filesystem][memory]") {
  check_edit([](Transacted& t) { return errno_of(t.mount->rename(kRootIno, "first", kRootIno, "moved")); },
             [](Transacted& t) {
               const bool is_moved = has(t, "moved");
               CHECK(has(t, "first") == !is_moved);
               CHECK(t.mount.read(is_moved ? "moved" : "first") == kOld);
               return is_moved;
             });
}

TEST_CASE("a deletion without memory is made or not, and the next edit works", "[fs][filesystem][memory]") {
  check_edit([](Transacted& t) { return errno_of(t.mount->remove_file(kRootIno, "first")); },
             [](Transacted& t) {
               const bool is_gone = !has(t, "first");
               if (!is_gone) CHECK(t.mount.read("first") == kOld);
               return is_gone;
             });
}
