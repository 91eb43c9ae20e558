// Turns a tensor's old bytes into its new ones, piece by piece, from its published diff.
//
// A diff is hostile input. The decoder never expands more than the tensor needs, and takes at most 1 MiB
// besides the memory of its frames (frame_reader.h): one frame for xor, two for large overwrite diffs, whose
// positions precede their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "tools/sync/diff_encoding.h"
#include "tools/sync/frame_reader.h"

namespace stfs::sync {

/// Used by one thread, for any number of diffs: its memory is kept from one to the next. After a failure only
/// start() may be called.
///
/// Failures are InvalidArgument (EINVAL) with the reason, without the tensor's name: the caller adds it. They
/// are: a frame that is damaged, cut short, followed by other bytes, or not there; content that is smaller
/// or larger than the tensor needs; a count, a position or an order of positions that does not fit the
/// tensor. Errors of reading the frame are passed on.
class DiffDecoder {
 public:
  /// Begins with a diff. Refuses a frame whose content does not fit the tensor, as far as its beginning
  /// tells.
  /// @param tensor_bytes  the size of the tensor.
  Result<void> start(DiffEncoding encoding, CompressedDiff diff, std::uint64_t tensor_bytes);
  /// Turns the tensor's next bytes from old into new ones, in place.
  /// @param bytes  any number of bytes, which lie in the tensor behind those of the calls before.
  /// @return whether any of them has changed. After a failure their values are unspecified.
  Result<bool> apply(std::span<std::byte> bytes);
  /// Checks that the diff ends exactly with the tensor. All bytes of the tensor must have been applied.
  Result<void> finish();

 private:
  Result<bool> apply_xor(std::span<std::byte> bytes);
  Result<bool> apply_overwrite(std::span<std::byte> bytes);
  /// Reads the count of an overwrite diff, and prepares both cursors.
  Result<void> start_overwrite(const CompressedDiff& diff);
  /// Reads the next positions and values, and checks the positions.
  Result<void> next_batch();
  /// Reads exactly so many bytes, or fails: the diff is too small.
  Result<void> read_exactly(FrameReader& reader, std::span<std::byte> to);
  [[nodiscard]] Result<void> check_batch();

  DiffEncoding encoding_ = DiffEncoding::Xor;
  std::uint64_t tensor_bytes_ = 0;
  std::uint64_t at_ = 0;          // bytes of the tensor that are applied
  std::uint64_t due_bytes_ = 0;   // the size of the whole diff, expanded
  FrameReader reader_;            // of xor; of positions
  std::vector<std::byte> piece_;  // of xor
  std::span<const std::byte> unapplied_;
  std::uint64_t expanded_bytes_ = 0;  // by xor
  // Of overwrite. A batch is positions, and as many values.
  FrameReader values_reader_;
  bool has_values_reader_ = false;  // false: the positions' reader goes on with the values
  std::vector<std::uint32_t> positions_;
  std::vector<std::byte> values_;
  std::size_t in_batch_ = 0;          // positions of the batch that are applied
  std::uint64_t left_ = 0;            // positions behind the batch
  std::uint64_t least_position_ = 0;  // that the next batch may begin with
};

}  // namespace stfs::sync
