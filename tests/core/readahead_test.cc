// Bytes are fetched before they are read: for reads in order, and for no others.
#include "core/storage/readahead.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/choices.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kKiB = 1 << 10;

/// The fetched range. Each added range must begin at its end.
struct Fetched {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  void add(ByteRange range) {
    if (range.empty()) return;
    if (end == 0) begin = end = range.offset;
    CHECK(range.offset == end);
    end = range.end();
  }
};

}  // namespace

TEST_CASE("reads in order keep between 4 and 8 MiB before them", "[core][readahead]") {
  for (const std::uint64_t read_bytes : {4 * kKiB, 100'001UL, 128 * kKiB, kMiB}) {
    CAPTURE(read_bytes);
    Readahead readahead;
    Fetched fetched;
    std::uint64_t at = 12'345;
    for (; at < 64 * kMiB; at += read_bytes) {
      fetched.add(readahead.after({at, read_bytes}));
      const std::uint64_t end = at + read_bytes;
      if (end < 3 * kMiB) continue;
      CHECK(fetched.end >= end + Readahead::kStepBytes);
      CHECK(fetched.end <= end + Readahead::kAheadBytes);
    }
    // The first reads come before an order is detected.
    CHECK(fetched.begin <= 12'345 + std::max(Readahead::kBeginBytes + read_bytes, 2 * read_bytes));
  }
}

TEST_CASE("requests that arrive a little out of order are in order", "[core][readahead]") {
  Readahead readahead;
  Fetched fetched;
  constexpr std::uint64_t kRead = 128 * kKiB;
  for (std::uint64_t group = 0; group < 32 * kMiB; group += 4 * kRead) {
    for (const std::uint64_t place : {2U, 0U, 3U, 1U})
      fetched.add(readahead.after({group + place * kRead, kRead}));
  }
  CHECK(fetched.end >= 32 * kMiB + Readahead::kStepBytes);
}

TEST_CASE("a single read fetches nothing, nor do reads here and there", "[core][readahead]") {
  Readahead readahead;
  CHECK(readahead.after({0, 64 * kMiB}).empty());
  test::RandomChoices choices(1);
  std::uint64_t fetched_bytes = 0;
  for (int i = 0; i < 10'000; ++i)
    fetched_bytes += readahead.after({choices.below(1UL << 34), 4096}).size_bytes;
  CHECK(fetched_bytes == 0);
  // Reads with gaps between them have no order, however near they are.
  for (std::uint64_t at = 1UL << 40; at < (1UL << 40) + 512 * kMiB; at += 64 * kKiB)
    fetched_bytes += readahead.after({at, 4 * kKiB}).size_bytes;
  CHECK(fetched_bytes == 0);
}

TEST_CASE("reading once more fetches nothing more", "[core][readahead]") {
  Readahead readahead;
  static_cast<void>(readahead.after({0, kMiB}));
  CHECK(readahead.after({kMiB, kMiB}) == ByteRange{2 * kMiB, Readahead::kStepBytes});
  for (int i = 0; i < 10; ++i) CHECK(readahead.after({kMiB, kMiB}).empty());
}

TEST_CASE("several readers each have their order, up to a number", "[core][readahead]") {
  Readahead readahead;
  std::vector<Fetched> fetched(Readahead::kMostRuns);
  for (std::uint64_t at = 0; at < 16 * kMiB; at += kMiB) {
    for (std::size_t reader = 0; reader < fetched.size(); ++reader)
      fetched[reader].add(readahead.after({(reader << 32U) + at, kMiB}));
  }
  for (std::size_t reader = 0; reader < fetched.size(); ++reader)
    CHECK(fetched[reader].end >= (reader << 32U) + 16 * kMiB + Readahead::kStepBytes);
  // One more reader takes the place of the least recently used one. The order of that reader must then be
  // detected again.
  static_cast<void>(readahead.after({1UL << 50, kMiB}));
  for (std::uint64_t at = 16 * kMiB; at < 20 * kMiB; at += kMiB)
    fetched[1].add(readahead.after({(1UL << 32) + at, kMiB}));
  CHECK(fetched[1].end >= (1UL << 32) + 20 * kMiB + Readahead::kStepBytes);
  CHECK(readahead.after({16 * kMiB, kMiB}).empty());
  CHECK(readahead.after({17 * kMiB, kMiB}) == ByteRange{18 * kMiB, Readahead::kStepBytes});
}
