// Locks between processes: their places in the file, which locks exclude each other, and how the holder is
// reported.
#include "core/journal/file_lock.h"

#include "core/journal/journal_format.h"
#include "core/storage/lock_holder.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/lock_owner.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kBase = std::uint64_t{1} << 62U;
constexpr std::chrono::milliseconds kAtOnce{0};

/// An archive that is opened twice, as by two processes: a lock is on an open file description.
struct TwoOpeners {
  TwoOpeners()
      : path(directory.write("m.safetensors", std::string(10 * kBlockBytes, 'x'))),
        one(system_storage().open(path, Access::ReadWrite).value()),
        other(system_storage().open(path, Access::ReadWrite).value()) {}

  Result<ArchiveLocks> lock(File& file, std::vector<ByteRange> ranges) const {
    return ArchiveLocks::for_patch(file, path, std::move(ranges), kAtOnce);
  }
  [[nodiscard]] bool is_busy(ByteRange range) const {
    const auto taken = lock(*other, {range});
    return !taken && taken.error().errno_value == EBUSY;
  }

  TemporaryDirectory directory;
  std::string path;
  std::unique_ptr<File> one;
  std::unique_ptr<File> other;
};

}  // namespace

TEST_CASE("patches of different blocks go side by side, of the same block one after the other",
          "[core][file_lock]") {
  const TwoOpeners openers;
  auto held = openers.lock(*openers.one, {{4100, 10}, {3 * kBlockBytes, 1}});
  REQUIRE(held);
  CHECK(openers.is_busy({kBlockBytes, 1}));
  CHECK(openers.is_busy({2 * kBlockBytes - 1, 1}));
  CHECK(openers.is_busy({0, kBlockBytes + 1}));
  CHECK(openers.is_busy({3 * kBlockBytes + 100, 1}));
  CHECK_FALSE(openers.is_busy({0, kBlockBytes}));
  CHECK_FALSE(openers.is_busy({2 * kBlockBytes, kBlockBytes}));
  held->release();
  CHECK_FALSE(openers.is_busy({kBlockBytes, 1}));
}

TEST_CASE("patches of block 0 exclude each other, and no patch of another block", "[core][file_lock]") {
  const TwoOpeners openers;
  const auto held = openers.lock(*openers.one, {{100, 10}});
  REQUIRE(held);
  CHECK(openers.is_busy({200, 1}));
  CHECK_FALSE(openers.is_busy({kBlockBytes, 1}));
}

TEST_CASE("an edit of the structure excludes every patch", "[core][file_lock]") {
  const TwoOpeners openers;
  REQUIRE_FALSE(openers.one->try_lock({kBase, 1}, LockKind::Exclusive)->has_value());
  CHECK(openers.is_busy({5 * kBlockBytes, 1}));
  openers.one->unlock({kBase, 1});
  CHECK_FALSE(openers.is_busy({5 * kBlockBytes, 1}));
}

TEST_CASE("no lock covers data", "[core][file_lock]") {
  const TwoOpeners openers;
  const auto held = openers.lock(*openers.one, {{0, 10 * kBlockBytes}});
  REQUIRE(held);
  CHECK_FALSE(openers.other->try_lock({0, kBase}, LockKind::Exclusive)->has_value());
}

TEST_CASE("locks that can't all be had are all given back", "[core][file_lock]") {
  const TwoOpeners openers;
  const auto held = openers.lock(*openers.one, {{5 * kBlockBytes, 1}});
  REQUIRE(held);
  REQUIRE_FALSE(openers.lock(*openers.other, {{kBlockBytes, 1}, {5 * kBlockBytes, 1}}));
  const auto third = system_storage().open(openers.path, Access::ReadWrite).value();
  CHECK(openers.lock(*third, {{kBlockBytes, 1}}));
}

TEST_CASE("locks move with their owner and end with it", "[core][file_lock]") {
  const TwoOpeners openers;
  {
    ArchiveLocks kept;
    {
      auto held = openers.lock(*openers.one, {{0, 1}});
      REQUIRE(held);
      kept = std::move(*held);
    }
    CHECK(openers.is_busy({0, 1}));
    const ArchiveLocks last(std::move(kept));
    CHECK(openers.is_busy({0, 1}));
  }
  CHECK_FALSE(openers.is_busy({0, 1}));
}

TEST_CASE("EBUSY names the file and the process that holds the lock", "[core][file_lock]") {
  const TwoOpeners openers;
  const LockOwner owner(openers.path, kBase + kBlockBytes, kBlockBytes);
  const auto taken =
      ArchiveLocks::for_patch(*openers.one, openers.path, {{kBlockBytes, 1}}, std::chrono::milliseconds(20));
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == ErrorCode::Busy);
  CHECK(taken.error().message.starts_with(openers.path));
  CHECK(taken.error().message.find("process " + std::to_string(owner.pid())) != std::string::npos);
  CHECK(openers.one->lock_holder({kBase + kBlockBytes, 1}) == owner.pid());
  CHECK_FALSE(openers.one->lock_holder({kBase + 3 * kBlockBytes, 1}));
}

TEST_CASE("EBUSY names a process that holds a read lock, of its process or of its descriptor",
          "[core][file_lock]") {
  const TwoOpeners openers;
  const bool is_of_process = GENERATE(false, true);
  const LockOwner owner(openers.path, 0, 0, F_RDLCK, is_of_process);
  for (const bool is_edit : {false, true}) {
    const auto taken = is_edit ? ArchiveLocks::for_edit(*openers.one, openers.path, kAtOnce)
                               : openers.lock(*openers.one, {{kBlockBytes, 1}});
    REQUIRE_FALSE(taken);
    CHECK(taken.error().errno_value == EBUSY);
    CHECK(taken.error().message.find("process " + std::to_string(owner.pid())) != std::string::npos);
    CHECK(taken.error().message.find("of user " + std::to_string(::geteuid())) != std::string::npos);
  }
  // A process that only reads does not wait.
  CHECK(ArchiveLocks::for_patch(*openers.one, openers.path, {}, kAtOnce));
}

TEST_CASE("a process that is not known is another one", "[core][file_lock]") {
  CHECK(holder_text(std::nullopt) == "another process");
  CHECK(holder_text(1).starts_with("process 1 ("));
  const TwoOpeners openers;
  CHECK_FALSE(find_flock_holder(openers.path));
  CHECK_FALSE(find_flock_holder(openers.path + "absent"));
  const auto held = system_storage().try_flock(openers.path, LockKind::Exclusive);
  REQUIRE(held);
  CHECK(find_flock_holder(openers.path) == ::getpid());
}

TEST_CASE("a file system without locks is said to be one", "[core][file_lock]") {
  const TwoOpeners openers;
  FaultyStorage storage;
  const auto file = storage.open(openers.path, Access::ReadWrite).value();
  storage.plan().fail_call(FileCall::Lock, 1, ENOLCK);
  const auto taken = openers.lock(*file, {{0, 1}});
  REQUIRE_FALSE(taken);
  CHECK(taken.error().errno_value == ENOLCK);
  CHECK(lacks_locks(taken.error()));
}
