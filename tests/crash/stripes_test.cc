// One content in several files, against a plain vector; and where there are none.
#include "core/journal/stripes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "tests/crash/striped_disk.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A journal's file, and its stripes.
class Striped {
 public:
  explicit Striped(DiskOptions options) : disk_(options), storage_(*process_) {
    journal_ = storage_.create_unnamed(kPath).value();
    opened_ = Stripes::open(storage_, *journal_, kPath, 4 * kStripe);
  }

  [[nodiscard]] bool is_there() const { return opened_.value() != nullptr; }
  Stripes* operator->() { return opened_.value().get(); }
  [[nodiscard]] FaultPlan& plan() { return storage_.plan(); }
  /// In order, as one who writes alone.
  Result<void> write(std::span<const std::byte> from) {
    const std::uint64_t at = (*this)->next();
    (*this)->expect(from.size());
    return (*this)->write(from, at);
  }
  /// What the journal has.
  std::vector<std::byte> journal(std::uint64_t offset, std::size_t size_bytes) {
    std::vector<std::byte> found(size_bytes);
    REQUIRE(journal_->read(found, offset));
    return found;
  }
  void put_into_journal(std::span<const std::byte> from, std::uint64_t offset) {
    REQUIRE(journal_->write(from, offset));
  }

 private:
  static constexpr const char* kPath = "/models/.model.journal";
  DiskModel disk_;
  std::unique_ptr<DiskProcess> process_ = disk_.start_process();
  FaultyStorage storage_;
  std::unique_ptr<File> journal_;
  Result<std::unique_ptr<Stripes>> opened_ = nullptr;
};

}  // namespace

TEST_CASE("there are stripes only where blocks can be shared and files need no name", "[stripes]") {
  CHECK(Striped(disk_of(2)).is_there());
  CHECK_FALSE(Striped(disk_of(1)).is_there());
  DiskOptions without = disk_of(2);
  without.has_clone = false;
  CHECK_FALSE(Striped(without).is_there());
  without = disk_of(2);
  without.has_unnamed = false;
  CHECK_FALSE(Striped(without).is_there());
}

TEST_CASE("what is written through stripes is in the journal, and nothing beside it is touched",
          "[stripes]") {
  Striped striped(disk_of(GENERATE(2U, 3U), GENERATE(1U, 2U, 5U)));
  std::mt19937 random(1);
  // Contents one after the other, at places of every kind, over what the journal had there.
  std::vector<std::byte> expected = some_bytes(40 * kDiskBlockBytes, 1);
  striped.put_into_journal(expected, 0);
  for (unsigned content = 0; content < 40; ++content) {
    const std::size_t begin = random() % expected.size();
    const std::size_t end = begin + 1 + random() % (expected.size() - begin);
    striped->begin(begin);
    for (std::size_t at = begin; at < end;) {
      const auto part =
          some_bytes(std::min<std::size_t>(end - at, 1 + random() % (3 * kDiskBlockBytes)), content);
      REQUIRE(striped.write(part));
      std::ranges::copy(part, expected.begin() + static_cast<std::ptrdiff_t>(at));
      at += part.size();
    }
    REQUIRE(striped->next() == end);
    REQUIRE(striped->finish());
    REQUIRE((striped.journal(0, expected.size()) == expected));
  }
}

TEST_CASE("what was not finished does not reach the journal with the next content", "[stripes]") {
  Striped striped(disk_of(2));
  const auto before = some_bytes(8 * kDiskBlockBytes, 1);
  striped.put_into_journal(before, 0);
  striped->begin(0);
  REQUIRE(striped.write(some_bytes(kStripe + 100, 2)));
  striped->begin(4 * kDiskBlockBytes);
  const auto content = some_bytes(kStripe, 3);
  REQUIRE(striped.write(content));
  REQUIRE(striped->finish());
  CHECK((striped.journal(4 * kDiskBlockBytes, kStripe) == content));
  CHECK(striped.journal(0, 4 * kDiskBlockBytes) ==
        std::vector(before.begin(), before.begin() + 4 * kDiskBlockBytes));
}

TEST_CASE("several threads write stripes at a time, round the ring", "[stripes]") {
  Striped striped(disk_of(3, GENERATE(1U, 2U)));
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kWrites = 400;
  constexpr std::size_t kWriteBytes = 3000;  // each passes the end of a stripe now and then
  const std::uint64_t begin = 77;
  const std::vector<std::byte> expected = some_bytes(kWrites * kWriteBytes, 2);
  striped->begin(begin);
  std::mutex order;  // as the lock of a content
  std::size_t next = 0;
  std::atomic<unsigned> failures = 0;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (;;) {
        std::size_t at = 0;
        {
          const std::scoped_lock lock(order);
          if (next == expected.size()) return;
          at = std::exchange(next, next + kWriteBytes);
          striped->expect(kWriteBytes);
        }
        if (!striped->write(std::span(expected).subspan(at, kWriteBytes), begin + at)) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(failures == 0);
  REQUIRE(striped->finish());
  CHECK((striped.journal(begin, expected.size()) == expected));
}

TEST_CASE("all files of the stripes can be taken, to be closed later", "[stripes]") {
  Striped striped(disk_of(3));
  for (int file = 0; file < 3; ++file) CHECK(striped->take_file() != nullptr);
  CHECK(striped->take_file() == nullptr);
}

TEST_CASE("a store's failure to open stripes is told", "[stripes]") {
  const auto call = GENERATE(FileCall::CreateUnnamed, FileCall::Reserve, FileCall::Write, FileCall::Clone);
  DiskModel disk(disk_of(2));
  const auto process = disk.start_process();
  FaultyStorage storage(*process);
  const auto journal = storage.create_unnamed("/models/.model.journal").value();
  storage.plan().fail_call(call, 1, ENOSPC);
  const auto opened = Stripes::open(storage, *journal, "/models/.model.journal", kStripe);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().errno_value == ENOSPC);
}

TEST_CASE("what fails once fails until the next content: what was to be written may be lost", "[stripes]") {
  Striped striped(disk_of(2));
  const auto content = some_bytes(2 * kStripe, 1);
  striped->begin(0);
  SECTION("a write") {
    striped.plan().fail_call(FileCall::Write, 1, ENOSPC);
    CHECK(striped.write(content).error().errno_value == ENOSPC);
  }
  SECTION("the sharing") {
    REQUIRE(striped.write(content));
    striped.plan().fail_call(FileCall::Clone, 1, ENOSPC);
    CHECK(striped->finish().error().errno_value == ENOSPC);
  }
  striped.plan().fail_call(0, 0);
  CHECK(striped->finish().error().errno_value == ENOSPC);
  striped->begin(0);
  REQUIRE(striped.write(content));
  REQUIRE(striped->finish());
  CHECK((striped.journal(0, content.size()) == content));
}

TEST_CASE("who waits for the ring hears of a failure before it", "[stripes]") {
  Striped striped(disk_of(2, 1));
  striped->begin(0);
  striped->expect(3 * kStripe);
  Result<void> waiting;
  std::thread waiter([&] { waiting = striped->write(some_bytes(kStripe, 1), 2 * kStripe); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  striped.plan().fail_call(FileCall::Write, 1, EDQUOT);
  CHECK_FALSE(striped->write(some_bytes(kStripe, 2), 0));
  waiter.join();
  REQUIRE_FALSE(waiting);
  CHECK(waiting.error().errno_value == EDQUOT);
}
