// NumPy's basic indexing of a tensor, for example "0:10,:,3": which bytes it selects, and in which order.
//
// A slice is never listed element by element. A slice is at most 64 nested loops around one contiguous run of
// bytes, so that finding a place in it takes as many steps as it has loops.
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

/// NumPy's own limit (NPY_MAXDIMS of NumPy 2). A tensor of more dimensions has no slices.
inline constexpr std::size_t kMaxSliceRank = 64;

struct Slice {
  /// One loop level, merged with its neighbours where their bytes allow it.
  struct Loop {
    std::uint64_t count = 0;  // at least 2
    /// From one iteration's first byte to the next one's. Negative if the loop goes backwards.
    std::int64_t stride_bytes = 0;
  };

  std::vector<std::uint64_t> shape;  // of the selection; empty for a scalar
  std::uint64_t element_count = 0;
  std::uint64_t size_bytes = 0;
  /// The smallest range of the tensor that contains the slice. The slice itself if is_contiguous().
  ByteRange extent;

  // The loops. An empty slice has no run, and its run_bytes is 0.
  std::uint64_t first_byte = 0;  // offset in the tensor of the first run
  std::uint64_t run_bytes = 0;   // one or more whole elements
  std::vector<Loop> loops;       // outermost first

  /// Returns true if the slice is one range of bytes, for example adjacent positions of the first dimension.
  [[nodiscard]] bool is_contiguous() const { return loops.empty(); }
};

/// Parses integers (which drop their dimension), ranges with steps, negative numbers and one "...", with
/// spaces around them and a comma at the end, as NumPy does: bounds of ranges are clipped, integers are not.
/// Takes time in proportion to the text and the rank, however large the numbers are. Elements of 4 and 6 bits
/// can be selected if every run of them is whole bytes.
/// @return InvalidArgument with the reason and the byte of the error, without the text itself; the errors of
///   header.h if no tensor can have the shape.
Result<Slice> parse_slice(std::string_view text, Dtype dtype, std::span<const std::uint64_t> shape);

/// A position among the runs of a slice. Refers to the slice, which must outlive it.
class SliceCursor {
 public:
  /// @param run  the run's number in the slice's order, below the number of runs.
  SliceCursor(const Slice& slice, std::uint64_t run);

  /// The offset of the current run in the tensor.
  [[nodiscard]] std::uint64_t source_offset() const { return offset_; }
  /// The number of runs from the current one to the end of the innermost loop, and their distance in the
  /// tensor.
  [[nodiscard]] std::uint64_t runs_in_row() const { return innermost_.count - position_; }
  [[nodiscard]] std::int64_t stride_bytes() const { return innermost_.stride_bytes; }

  /// Moves forward. After the last run it starts again at the first.
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
  std::array<std::uint64_t, kMaxSliceRank> positions_;  // in the outer loops
};

/// Calls `bool callback(ByteRange of the tensor)` for the pieces of a range of the slice's own bytes, in
/// order, until it returns false. Pieces that are adjacent in the tensor come as one.
/// @param range  clipped to the slice.
/// @return whether the whole range was visited.
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
