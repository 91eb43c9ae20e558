// Functions for the tests of slices: they parse a text, expect its refusal with a reason, and walk a slice
// run by run.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor/slice.h"
#include "core/tensor/slice_copy.h"
#include "tests/support/catch.h"

namespace stfs::test {

using Shape = std::vector<std::uint64_t>;

inline Slice parsed(std::string_view text, const Shape& shape, Dtype dtype = Dtype::U8) {
  auto slice = parse_slice(text, dtype, shape);
  INFO("slice: " << text);
  if (!slice) FAIL(slice.error().message);
  return std::move(*slice);
}

inline std::string failure(std::string_view text, const Shape& shape, Dtype dtype = Dtype::U8) {
  const auto slice = parse_slice(text, dtype, shape);
  INFO("slice: " << text.substr(0, 200));
  if (slice) return "no failure";
  CHECK(slice.error().errno_value == EINVAL);
  CHECK(slice.error().message.size() < 400);
  return slice.error().message;
}

inline std::vector<ByteRange> pieces_of(const Slice& slice, ByteRange range) {
  std::vector<ByteRange> pieces;
  CHECK(for_each_run(slice, range, [&](ByteRange piece) {
    pieces.push_back(piece);
    return pieces.size() < 1'000'000;
  }));
  return pieces;
}

inline std::vector<ByteRange> pieces_of(const Slice& slice) {
  return pieces_of(slice, {0, slice.size_bytes});
}

/// Checks the bytes of this range of the slice, gathered and run by run.
inline void check_range(const Slice& slice, ByteRange range, std::span<const std::byte> tensor,
                        std::span<const std::byte> expected) {
  const auto due = expected.subspan(range.offset, range.size_bytes);
  std::vector<std::byte> gathered(range.size_bytes + 1, std::byte{0xEE});
  REQUIRE(copy_slice(slice, range, tensor, std::span(gathered).first(range.size_bytes)) == range.size_bytes);
  REQUIRE(std::equal(due.begin(), due.end(), gathered.begin()));
  REQUIRE(gathered.back() == std::byte{0xEE});

  std::vector<std::byte> walked;
  const auto pieces = pieces_of(slice, range);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    REQUIRE(!pieces[i].empty());
    REQUIRE(slice.extent.contains(pieces[i]));
    if (i > 0) REQUIRE(pieces[i - 1].end() != pieces[i].offset);
    const auto piece = tensor.subspan(pieces[i].offset, pieces[i].size_bytes);
    walked.insert(walked.end(), piece.begin(), piece.end());
  }
  REQUIRE(std::equal(due.begin(), due.end(), walked.begin(), walked.end()));
}

}  // namespace stfs::test
