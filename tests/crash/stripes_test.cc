// One content in several files, against a plain vector; and where there are none.
#include "core/stripes.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "core/staging.h"
#include "tests/support/catch.h"
#include "tests/support/disk_model.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kStripe = 2 * kDiskBlockBytes;
constexpr std::uint64_t kProbe = 8 * kDiskBlockBytes;

DiskOptions disk_of(std::uint32_t files) {
  return {.has_clone = true, .striping = {.files = files, .stripe_bytes = kStripe, .from_bytes = 0}};
}

/// A journal's file, and its stripes.
class Striped {
 public:
  explicit Striped(DiskOptions options) : disk_(options) {
    journal_ = process_->create_unnamed(kPath).value();
    opened_ = Stripes::open(*process_, *journal_, kPath, kProbe);
  }

  [[nodiscard]] bool is_there() const { return opened_.value() != nullptr; }
  Stripes* operator->() { return opened_.value().get(); }
  [[nodiscard]] File& journal() { return *journal_; }

 private:
  static constexpr const char* kPath = "/models/.model.journal";
  DiskModel disk_;
  std::unique_ptr<DiskProcess> process_ = disk_.start_process();
  std::unique_ptr<File> journal_;
  Result<std::unique_ptr<Stripes>> opened_ = nullptr;
};

std::vector<std::byte> some_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

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

TEST_CASE("what is written into stripes is read there, and then in the journal", "[stripes]") {
  const auto files = GENERATE(2U, 3U);
  Striped striped(disk_of(files));
  const std::uint64_t begin = GENERATE(as<std::uint64_t>{}, 0, kDiskBlockBytes, 5 * kDiskBlockBytes);
  std::vector<std::byte> expected = some_bytes(11 * kDiskBlockBytes, 1);
  REQUIRE(striped->reserve({begin, expected.size()}));
  REQUIRE(striped->write(expected, begin));
  std::mt19937 random(files);
  for (int times = 0; times < 200; ++times) {
    const std::size_t at = random() % expected.size();
    const auto part = some_bytes(1 + random() % (expected.size() - at), static_cast<unsigned>(times));
    REQUIRE(striped->write(part, begin + at));
    std::ranges::copy(part, expected.begin() + static_cast<std::ptrdiff_t>(at));
    std::vector<std::byte> found(1 + random() % expected.size());
    const std::size_t from = random() % (expected.size() - found.size() + 1);
    REQUIRE(striped->read(found, begin + from));
    REQUIRE(std::ranges::equal(found, std::span(expected).subspan(from, found.size())));
  }
  REQUIRE(striped->share_with(striped.journal(), {begin, expected.size()}));
  std::vector<std::byte> found(expected.size());
  REQUIRE(striped.journal().read(found, begin));
  CHECK(found == expected);
  // Shared once more after another write, as a commit that is tried again does.
  expected[kDiskBlockBytes] = std::byte{77};
  REQUIRE(striped->write(std::span(expected).subspan(kDiskBlockBytes, 1), begin + kDiskBlockBytes));
  REQUIRE(striped->share_with(striped.journal(), {begin, expected.size()}));
  REQUIRE(striped.journal().read(found, begin));
  CHECK(found == expected);
}

TEST_CASE("several threads write stripes at a time", "[stripes]") {
  Striped striped(disk_of(3));
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kWrites = 64;
  constexpr std::size_t kWriteBytes = 3000;  // each passes the end of a stripe now and then
  std::vector<std::byte> expected = some_bytes(kThreads * kWrites * kWriteBytes, 2);
  std::atomic<unsigned> failures = 0;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t number = 0; number < kWrites; ++number) {
        const std::size_t at = (number * kThreads + thread) * kWriteBytes;
        if (!striped->write(std::span(expected).subspan(at, kWriteBytes), at)) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(failures == 0);
  std::vector<std::byte> found(expected.size());
  REQUIRE(striped->read(found, 0));
  CHECK(found == expected);
}

TEST_CASE("all files of the stripes can be taken, to be closed later", "[stripes]") {
  Striped striped(disk_of(3));
  for (int file = 0; file < 3; ++file) CHECK(striped->take_file() != nullptr);
  CHECK(striped->take_file() == nullptr);
}

TEST_CASE("a store's failure to open stripes is told", "[stripes]") {
  const auto call = GENERATE(FileCall::CreateUnnamed, FileCall::Write, FileCall::Clone);
  DiskModel disk(disk_of(2));
  const auto process = disk.start_process();
  FaultyStorage storage(*process);
  const auto journal = storage.create_unnamed("/models/.model.journal").value();
  storage.plan().fail_call(call, 1, ENOSPC);
  const auto opened = Stripes::open(storage, *journal, "/models/.model.journal", kProbe);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().errno_value == ENOSPC);
}

TEST_CASE("a journal whose stripes can't be shared is spoiled: what was to be written may be lost",
          "[stripes]") {
  DiskModel disk(disk_of(2));
  const auto process = disk.start_process();
  FaultyStorage storage(*process);
  const auto journal = Journal::create(storage, "/models/model.safetensors").value();
  const std::uint64_t region = journal->allocate(4 * kDiskBlockBytes);
  REQUIRE(journal->spread({region, 4 * kDiskBlockBytes}).value() != nullptr);
  REQUIRE(journal->write(some_bytes(4 * kDiskBlockBytes, 3), region));
  JournalRecord record;
  record.ranges = {{.archive = {0, 4 * kDiskBlockBytes},
                    .journal_offset = region,
                    .new_hashes = {1, 2, 3, 4},
                    .old_hashes = {1, 2, 3, 4}}};
  storage.plan().fail_call(FileCall::Clone, 1, EIO);
  REQUIRE_FALSE(journal->seal(record, Durability::Power));
  // Shared without a complaint now, but nobody knows what.
  const auto again = journal->seal(record, Durability::Power);
  REQUIRE_FALSE(again);
  CHECK(again.error().errno_value == EIO);
  CHECK(journal->spoiled());
}

namespace {

/// Random writes, cuts and reads of one tensor. @return how many writes were done in halves.
unsigned stage_at_random(unsigned seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  DiskModel disk({.has_clone = true,
                  .striping = {.files = 2 + static_cast<std::uint32_t>(below(2)),
                               .stripe_bytes = kStripe,
                               .from_bytes = kDiskBlockBytes}});
  const auto process = disk.start_process();
  const auto journal = Journal::create(*process, "/models/model.safetensors").value();
  const std::size_t size = 1 + below(60'000);
  Staging staging(*journal, {below(10'000), size});
  std::vector<std::byte> expected = some_bytes(size, seed);
  const std::vector<std::byte> old = expected;
  const auto read_base = [&](std::span<std::byte> to, std::uint64_t at) -> Result<void> {
    std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
    return {};
  };

  std::size_t next = 0;  // where what comes in order goes on
  unsigned halves = 0;
  for (int step = 0; step < 120; ++step) {
    const std::size_t action = below(12);
    if (action == 0) {
      const std::size_t to = below(2) == 0 ? 0 : below(size + 1);
      REQUIRE(staging.resize(to));
      expected.resize(to);
      if (to == 0) next = 0;
    } else if (action < 9) {
      const bool is_in_order = action > 2 && next < size;
      const std::size_t at = is_in_order ? next : below(size);
      const auto part =
          some_bytes(1 + below(std::min<std::size_t>(size - at, 9000)), seed + static_cast<unsigned>(step));
      if (is_in_order) next = at + part.size();
      if (expected.size() < at + part.size()) expected.resize(at + part.size());
      std::ranges::copy(part, expected.begin() + static_cast<std::ptrdiff_t>(at));
      if (staging.takes_halves({at, part.size()})) {
        ++halves;
        REQUIRE(staging.note(part, at));
        REQUIRE(staging.put(part, at));
      } else {
        REQUIRE(staging.write(part, at));
      }
    }
    REQUIRE(staging.size_bytes() == expected.size());
    std::vector<std::byte> found(expected.size());
    REQUIRE(staging.read(found, 0, read_base));
    REQUIRE(found == expected);
  }
  return halves;
}

}  // namespace

TEST_CASE("a tensor staged in stripes, also in halves, reads as a plain vector does", "[stripes]") {
  unsigned halves = 0;
  for (unsigned seed = 1; seed <= 80; ++seed) halves += stage_at_random(seed);
  CHECK(halves > 200);
}
