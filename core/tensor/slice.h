// NumPy's basic indexing of a tensor, "0:10,:,3": which of its bytes, and in which order.
//
// What a slice holds is never listed. It is a nest of at most 64 loops around one run of bytes that lie
// together, so that any place of it is found in as many steps as there are loops.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs {

/// NumPy's own limit (NPY_MAXDIMS of NumPy 2); a tensor of more dimensions has no slices.
inline constexpr std::size_t kMaxSliceRank = 64;

struct Slice {
  /// One level of the walk, coalesced with its neighbours where their bytes allow it.
  struct Loop {
    std::uint64_t count = 0;        // at least 2
    std::int64_t stride_bytes = 0;  // from one turn's first byte to the next one's; negative where backwards
  };

  std::vector<std::uint64_t> shape;  // of what is selected; empty for a scalar
  std::uint64_t element_count = 0;
  std::uint64_t size_bytes = 0;
  /// The smallest range of the tensor that holds all of it: the slice itself where is_contiguous().
  ByteRange extent;

  // The walk. A slice of nothing has no run; its run_bytes is 0.
  std::uint64_t first_byte = 0;  // of the tensor, where the first run begins
  std::uint64_t run_bytes = 0;   // a whole element at least
  std::vector<Loop> loops;       // outermost first

  /// One range of the tensor as it lies there: any slice along the leading dimension alone.
  [[nodiscard]] bool is_contiguous() const { return loops.empty(); }
};

/// Understands integers (which drop their dimension), ranges with steps, negative numbers and one "...",
/// with spaces around them and a comma at the end, as NumPy does: bounds of ranges are clipped, integers
/// are not. Takes time in proportion to the text and the rank, however large the numbers are.
/// Elements of 4 and 6 bits can be selected where every run of them is whole bytes.
/// @return InvalidArgument with the byte of the text where it went wrong and why, without the text itself;
///         header.h's errors where the shape is no tensor's.
Result<Slice> parse_slice(std::string_view text, Dtype dtype, std::span<const std::uint64_t> shape);

/// A place in a slice's walk over its runs. Refers to the slice.
class SliceCursor {
 public:
  /// @param run  the place in the slice's order, below the number of its runs.
  SliceCursor(const Slice& slice, std::uint64_t run);

  /// Where the run begins in the tensor.
  [[nodiscard]] std::uint64_t source_offset() const { return offset_; }
  /// Runs from here to the end of the innermost loop, this one included, and how far apart they are.
  [[nodiscard]] std::uint64_t runs_in_row() const { return innermost_.count - position_; }
  [[nodiscard]] std::int64_t stride_bytes() const { return innermost_.stride_bytes; }

  /// Behind the last run the walk begins again.
  /// @param runs  at most runs_in_row().
  void advance(std::uint64_t runs) {
    position_ += runs;
    offset_ += runs * static_cast<std::uint64_t>(innermost_.stride_bytes);
    if (position_ == innermost_.count) next_row();
  }

 private:
  void next_row();

  const Slice& slice_;
  Slice::Loop innermost_{1, 0};
  std::uint64_t position_ = 0;  // in the innermost loop
  std::uint64_t offset_;
  std::array<std::uint64_t, kMaxSliceRank> positions_;  // in the loops around it
};

/// Calls `bool callback(ByteRange of the tensor)` for the pieces that make up a range of the slice's own
/// bytes, in order, until it returns false. Pieces that follow one another in the tensor come as one.
/// @param range  clipped to the slice.
/// @return whether all of it was visited.
template <class Callback>
bool for_each_run(const Slice& slice, ByteRange range, Callback&& callback) {
  range = range.intersection({0, slice.size_bytes});
  if (range.empty()) return true;
  SliceCursor cursor(slice, range.offset / slice.run_bytes);
  std::uint64_t skip_bytes = range.offset % slice.run_bytes;
  ByteRange piece{cursor.source_offset() + skip_bytes, 0};
  for (std::uint64_t left_bytes = range.size_bytes; left_bytes != 0; cursor.advance(1)) {
    const ByteRange run{cursor.source_offset() + skip_bytes,
                        std::min(slice.run_bytes - skip_bytes, left_bytes)};
    skip_bytes = 0;
    left_bytes -= run.size_bytes;
    if (run.offset == piece.end()) {
      piece.size_bytes += run.size_bytes;
    } else {
      if (!callback(piece)) return false;
      piece = run;
    }
  }
  return callback(piece);
}

}  // namespace stfs
