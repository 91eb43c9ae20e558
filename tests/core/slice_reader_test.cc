// core/archive/slice_reader.h: the reader gives the bytes of copy_slice(), and reads few bytes more than it
// needs.
#include "core/archive/slice_reader.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor/slice_copy.h"
#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kMostBytes = 512 << 10;

struct Matrix {
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;

  explicit Matrix(std::vector<std::uint64_t> dimensions) : shape(std::move(dimensions)) {
    std::uint64_t size = 1;
    for (const std::uint64_t dimension : shape) size *= dimension;
    bytes.resize(size);
    for (std::size_t at = 0; at < size; ++at) {
      bytes[at] = static_cast<std::byte>(static_cast<std::uint32_t>(at * 2654435761U) >> 24);
    }
  }
};

/// Reads as a file does: only the requested bytes are valid.
struct Reads {
  const Matrix& matrix;
  std::vector<ByteRange> ranges;
  std::vector<std::byte> scratch;

  Result<std::span<const std::byte>> operator()(ByteRange range) {
    ranges.push_back(range);
    REQUIRE(range.end() <= matrix.bytes.size());
    const auto from = std::span(matrix.bytes).subspan(range.offset, range.size_bytes);
    scratch.assign(from.begin(), from.end());
    return std::span<const std::byte>(scratch);
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const ByteRange& range : ranges) sum += range.size_bytes;
    return sum;
  }
};

Slice parsed(const std::string& text, const Matrix& matrix) {
  auto slice = parse_slice(text, Dtype::U8, matrix.shape);
  REQUIRE(slice);
  return *slice;
}

}  // namespace

TEST_CASE("a slice read in pieces is what copy_slice copies of the whole tensor", "[core][slice_reader]") {
  const Matrix matrix({6, 700, 1300});
  for (const char* text :
       {"...", "2", ":,::2", "::-1", "..., ::-1", "1:3, 5:-5:3, ::7", "::-2, ::-3, 1299::-650", ":, :, 5",
        "-1, 0:0", "4:, 699, :", "::5, ::699, ::1299", "3, 3, 3"}) {
    CAPTURE(text);
    const Slice slice = parsed(text, matrix);
    std::vector<std::byte> due(slice.size_bytes);
    copy_slice(slice, {0, slice.size_bytes}, matrix.bytes, due);
    for (const std::uint64_t piece_bytes :
         {std::uint64_t{977}, std::uint64_t{1} << 17, slice.size_bytes + 1}) {
      Reads reads{matrix, {}, {}};
      std::vector<std::byte> came(slice.size_bytes);
      for (std::uint64_t at = 0; at < came.size(); at += piece_bytes) {
        const ByteRange range{at, std::min(piece_bytes, came.size() - at)};
        REQUIRE(read_slice(slice, range, {std::ref(reads)}, std::span(came).subspan(at)));
      }
      CHECK((came == due));
      CHECK(std::ranges::all_of(reads.ranges, [&](ByteRange range) {
        return slice.extent.contains(range) && range.size_bytes <= std::max(kMostBytes, piece_bytes);
      }));
    }
  }
}

TEST_CASE("a piece of a long run is read without the rest of the run", "[core][slice_reader]") {
  const Matrix matrix({4, 3'000'000});
  const Slice slice = parsed("::2", matrix);
  REQUIRE(slice.run_bytes == 3'000'000);
  Reads reads{matrix, {}, {}};
  std::vector<std::byte> came(1000);
  REQUIRE(read_slice(slice, {100, 1000}, {std::ref(reads)}, came));
  CHECK(reads.bytes() <= kMostBytes);
}

TEST_CASE("what lies between far runs is not read, what lies between near ones is read along",
          "[core][slice_reader]") {
  const Matrix matrix({40, 500'000});
  std::vector<std::byte> came(1 << 20);
  Reads far{matrix, {}, {}};
  REQUIRE(read_slice(parsed(":, 7:9", matrix), {0, 80}, {std::ref(far)}, came));
  CHECK(far.ranges.size() == 40);
  CHECK(far.bytes() == 80);

  Reads near{matrix, {}, {}};
  REQUIRE(read_slice(parsed("3, ::50", matrix), {0, 10'000}, {std::ref(near)}, came));
  CHECK(near.ranges.size() == 2);
}

TEST_CASE("a slice's reader stops at the first error", "[core][slice_reader]") {
  const Matrix matrix({40, 500'000});
  int calls = 0;
  std::vector<std::byte> came(80);
  const auto read =
      read_slice(parsed(":, 7:9", matrix), {0, 80}, {[&](ByteRange) -> Result<std::span<const std::byte>> {
                   ++calls;
                   return fail(ErrorCode::ArchiveCut, EIO, "gone");
                 }},
                 came);
  REQUIRE_FALSE(read);
  CHECK(read.error().message == "gone");
  CHECK(calls == 1);
}

TEST_CASE("short runs are taken from where they lie, long ones and what does not lie there are read",
          "[core][slice_reader]") {
  const Matrix matrix({40, 500'000});
  const auto bytes_of = [&](const char* text, bool lies_there, std::size_t reads_due) {
    const Slice slice = parsed(text, matrix);
    std::vector<std::byte> due(slice.size_bytes);
    copy_slice(slice, {0, slice.size_bytes}, matrix.bytes, due);
    Reads reads{matrix, {}, {}};
    std::vector<std::byte> came(slice.size_bytes);
    const TensorBytes tensor = {std::ref(reads), [&](const ByteSource::Copy& copy) {
                                  // If a page does not exist, the copy ends early: some bytes are copied
                                  // already.
                                  copy(matrix.bytes);
                                  return lies_there;
                                }};
    REQUIRE(read_slice(slice, {0, slice.size_bytes}, tensor, came));
    CHECK((came == due));
    CHECK(reads.ranges.size() == reads_due);
  };
  bytes_of(":, 7:9", true, 0);
  bytes_of(":, 7:9", false, 40);
  bytes_of("::20, 100000:200000", true, 2);
}
