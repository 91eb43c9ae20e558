// The bytes that a slice selects, as runs and as bytes. tests/reference/test_slices.py compares with NumPy
// itself.
#include "core/tensor/slice.h"

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/tensor/slice_copy.h"
#include "tests/core/sliced.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

}  // namespace

TEST_CASE("a slice along the leading dimension is one range", "[core][slice]") {
  const Slice rows = parsed("2:5", {10, 4, 3}, Dtype::F32);
  CHECK(rows.shape == Shape{3, 4, 3});
  CHECK(rows.element_count == 36);
  CHECK(rows.is_contiguous());
  CHECK(rows.extent == ByteRange{96, 144});
  CHECK(pieces_of(rows) == std::vector<ByteRange>{{96, 144}});
  CHECK(pieces_of(rows, {7, 50}) == std::vector<ByteRange>{{103, 50}});

  CHECK(parsed("3,1:3", {10, 4, 3}).is_contiguous());
  CHECK(parsed("3,1,::2", {10, 4, 3}).is_contiguous() == false);
  CHECK(parsed("...", {10, 4, 3}).extent == ByteRange{0, 120});
  CHECK(parsed("-1", {10, 4, 3}).extent == ByteRange{108, 12});
  // A slice of at most one row is contiguous, whatever its step.
  CHECK(parsed("4:5:-1", {10, 4}).is_contiguous());
  CHECK(parsed("4:3:-1", {10, 4}).extent == ByteRange{16, 4});
}

TEST_CASE("other slices come as the longest runs that they have", "[core][slice]") {
  CHECK(pieces_of(parsed(":,1:3", {3, 4})) == std::vector<ByteRange>{{1, 2}, {5, 2}, {9, 2}});
  CHECK(pieces_of(parsed("::2,1:,:", {4, 3, 5})) == std::vector<ByteRange>{{5, 10}, {35, 10}});
  CHECK(pieces_of(parsed("::-1", {3}, Dtype::F32)) == std::vector<ByteRange>{{8, 4}, {4, 4}, {0, 4}});
  // The last element of a row and the first element of the next row are adjacent, so they are one run.
  CHECK(pieces_of(parsed(":,::2", {3, 3})) == std::vector<ByteRange>{{0, 1}, {2, 2}, {5, 2}, {8, 1}});
  CHECK(parsed("::-1,::-1,::-1", {4, 5, 6}).loops.size() == 1);
  CHECK(parsed(":,:,3", {4, 5, 6}).loops.size() == 1);
}

TEST_CASE("a walk ends where its callback wants it to", "[core][slice]") {
  const Slice slice = parsed(":,0", {100, 2});
  int calls = 0;
  CHECK_FALSE(for_each_run(slice, {0, 100}, [&](ByteRange) { return ++calls < 3; }));
  CHECK(calls == 3);
}

TEST_CASE("ranges of a slice are clipped to it", "[core][slice]") {
  const Slice slice = parsed(":,0", {4, 2});
  std::vector<std::byte> tensor(8);
  std::iota(reinterpret_cast<char*>(tensor.data()), reinterpret_cast<char*>(tensor.data()) + 8, '\0');
  std::vector<std::byte> to(100);
  CHECK(copy_slice(slice, {2, 98}, tensor, to) == 2);
  CHECK(to[0] == std::byte{4});
  CHECK(to[1] == std::byte{6});
  CHECK(copy_slice(slice, {4, 1}, tensor, to) == 0);
  CHECK(copy_slice(slice, {~0ULL, 0}, tensor, to) == 0);
  CHECK(pieces_of(slice, {3, 50}) == std::vector<ByteRange>{{6, 1}});
  CHECK(pieces_of(slice, {50, 50}).empty());
}

TEST_CASE("runs of every length are gathered", "[core][slice]") {
  std::mt19937 random(7);
  std::vector<std::byte> tensor(40 * 41);
  for (std::byte& byte : tensor) byte = static_cast<std::byte>(random());
  for (std::uint64_t width = 1; width <= 40; ++width) {
    for (const char* step : {"", "-1"}) {
      CAPTURE(width, step);
      const Slice slice = parsed("::" + std::string(step) + ",:" + std::to_string(width), {40, 41});
      std::vector<std::byte> expected;
      for (std::size_t i = 0; i < 40; ++i) {
        const std::size_t row = *step == '\0' ? i : 39 - i;
        for (std::size_t at = 0; at < width; ++at) expected.push_back(tensor[row * 41 + at]);
      }
      check_range(slice, {0, expected.size()}, tensor, expected);
      if (expected.size() > 10) check_range(slice, {3, expected.size() - 7}, tensor, expected);
    }
  }
}

TEST_CASE("a slice of nothing is legal", "[core][slice]") {
  for (const char* text : {"5:5", "5:2", "2:5:-1", "100:", ":-100", "0:0,1", "..., 7:"}) {
    CAPTURE(text);
    const Slice slice = parsed(text, {10, 4});
    CHECK(slice.element_count == 0);
    CHECK(slice.size_bytes == 0);
    CHECK(slice.is_contiguous());
    CHECK(slice.extent.empty());
    CHECK(pieces_of(slice, {0, 10}).empty());
    CHECK(copy_slice(slice, {0, 10}, {}, {}) == 0);
  }
  CHECK(parsed("5:5", {10, 4}).shape == Shape{0, 4});
  CHECK(parsed("3:3", {4}, Dtype::F4).size_bytes == 0);
  CHECK(parsed("...,3", {0, 4}).shape == Shape{0});
}

TEST_CASE("a scalar has the slice of itself", "[core][slice]") {
  const Slice slice = parsed("...", {}, Dtype::F64);
  CHECK(slice.shape.empty());
  CHECK(slice.element_count == 1);
  CHECK(slice.extent == ByteRange{0, 8});
  CHECK(failure("0", {}) == "byte 0: more indices than the 0 dimensions of []");
  CHECK(parsed("1,2", {3, 4}).shape.empty());
  CHECK(parsed("1,2", {3, 4}).extent == ByteRange{6, 1});
}

TEST_CASE("a slice of a tensor of 2^60 bytes is planned and entered anywhere at once", "[core][slice]") {
  const Slice all = parsed("...", {kHuge});
  CHECK(all.extent == ByteRange{0, kHuge});
  const Slice backwards = parsed("::-1", {1 << 30, 1 << 30});
  CHECK(backwards.size_bytes == kHuge);
  const Slice odd = parsed("1::2,::-2", {1 << 30, 1 << 30});
  CHECK(odd.element_count == std::uint64_t{1} << 58);
  const std::uint64_t last = odd.size_bytes - 1;
  CHECK(pieces_of(odd, {last, 1}) == std::vector<ByteRange>{{(kHuge - (1 << 30)) + 1, 1}});
  CHECK(pieces_of(odd, {last - 1, 100}).size() == 2);
  CHECK(odd.extent.end() == kHuge);
  // The largest size that the format allows: 2^61 - 1 bytes.
  const std::uint64_t most = (std::uint64_t{1} << 61) - 1;
  CHECK(parsed("::-1", {most}).size_bytes == most);
  CHECK(pieces_of(parsed("::-1", {most}), {most - 1, 1}) == std::vector<ByteRange>{{0, 1}});
  CHECK(parsed("::2", {(most + 1) / 8 - 1}, Dtype::F64).extent.end() == most + 1 - 8);
  const Slice ends = parsed("::144115188075855872", {(kHuge >> 2) - 1}, Dtype::F64);
  CHECK(pieces_of(ends) == std::vector<ByteRange>{{0, 8}, {kHuge, 8}});
  CHECK(parsed("::-1,:", {1 << 30, std::uint64_t{1} << 31}, Dtype::F4).extent == ByteRange{0, kHuge});
}

TEST_CASE("elements of less than a byte are selected in runs of whole bytes", "[core][slice]") {
  CHECK(pieces_of(parsed("1", {3, 4}, Dtype::F4)) == std::vector<ByteRange>{{2, 2}});
  CHECK(pieces_of(parsed(":,2:4", {3, 4}, Dtype::F4)) == std::vector<ByteRange>{{1, 1}, {3, 1}, {5, 1}});
  CHECK(pieces_of(parsed("::-1,:2", {3, 4}, Dtype::F4)) == std::vector<ByteRange>{{4, 1}, {2, 1}, {0, 1}});
  CHECK(parsed("...", {2, 2}, Dtype::F6_E2M3).size_bytes == 3);
  CHECK(pieces_of(parsed(":,4:8", {2, 8}, Dtype::F6_E3M2)) == std::vector<ByteRange>{{3, 3}, {9, 3}});
  const std::string reason = "an element of F4 has 4 bits, and the slice's runs of ";
  CHECK(failure(":,1:3", {3, 4}, Dtype::F4).starts_with(reason + "2"));
  CHECK(failure(":,0", {3, 4}, Dtype::F4).starts_with(reason + "1"));
  CHECK(failure("0:1", {4}, Dtype::F4).starts_with(reason + "1"));
  CHECK(failure("::2", {4, 3}, Dtype::F4).starts_with(reason + "3"));
  CHECK(failure("::-1", {4}, Dtype::F4).starts_with(reason + "1"));
  CHECK(failure("0:2", {4}, Dtype::F6_E2M3).find("6 bits") != std::string::npos);
}
