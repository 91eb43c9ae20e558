// Turns a tensor's old bytes into its new bytes, piece by piece, with its published diff.
//
// A diff is hostile input. The decoder never expands more bytes than the tensor needs. Its memory is at most
// 1 MiB, plus for each frame that it reads the frame's window, which is at most 8 MiB, and 400 KiB more. A
// large overwrite diff needs two frames at the same time, because the positions precede the values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {

/// Used by one thread, for any number of diffs: the decoder keeps its memory from one diff to the next. After
/// a failure only start() may be called.
///
/// Failures are InvalidArgument (EINVAL) with the reason, without the tensor's name: the caller adds the
/// name. The reasons: a frame is damaged, cut short, followed by other bytes, or missing; the content is
/// smaller or larger than the tensor needs; a count, a position or an order of positions does not fit the
/// tensor. Errors of reading the frame are passed on.
class DiffDecoder {
 public:
  DiffDecoder();
  ~DiffDecoder();
  DiffDecoder(const DiffDecoder&) = delete;
  DiffDecoder& operator=(const DiffDecoder&) = delete;

  /// Begins with a diff. Refuses a frame if its beginning shows that its content does not fit the tensor.
  /// @param tensor_bytes  the size of the tensor.
  Result<void> start(DiffEncoding encoding, CompressedDiff diff, std::uint64_t tensor_bytes);
  /// Turns the tensor's next bytes from old into new bytes, in place.
  /// @param bytes  any number of bytes. They follow the bytes of the last call in the tensor.
  /// @return true if any byte has changed. After a failure the bytes are unspecified.
  Result<bool> apply(std::span<std::byte> bytes);
  /// Checks that the diff ends exactly with the tensor. All bytes of the tensor must have been applied.
  Result<void> finish();

 private:
  class Frame;
  Result<bool> apply_xor(std::span<std::byte> bytes);
  Result<bool> apply_overwrite(std::span<std::byte> bytes);
  /// Reads the count of an overwrite diff, and prepares both cursors.
  Result<void> start_overwrite(const CompressedDiff& diff);
  /// Reads the next positions and values, and checks the positions.
  Result<void> next_batch();
  /// Reads exactly this many bytes, or fails: the diff is too small.
  Result<void> read_exactly(Frame& frame, std::span<std::byte> to);
  [[nodiscard]] Result<void> check_batch();

  DiffEncoding encoding_ = DiffEncoding::Xor;
  std::uint64_t tensor_bytes_ = 0;
  std::uint64_t at_ = 0;          // bytes of the tensor that were processed
  std::uint64_t due_bytes_ = 0;   // the size of the whole diff, expanded
  std::unique_ptr<Frame> frame_;  // of xor, or of the positions
  std::vector<std::byte> piece_;  // decompressed
  // For overwrite. A batch has positions, and the same number of values.
  std::unique_ptr<Frame> second_frame_;
  Frame* values_frame_ = nullptr;  // frame_, or second_frame_ for a large diff
  std::vector<std::uint32_t> positions_;
  std::vector<std::byte> values_;
  std::size_t in_batch_ = 0;          // positions of the batch that were processed
  std::uint64_t left_ = 0;            // positions behind the batch
  std::uint64_t least_position_ = 0;  // the least first position of the next batch
};

}  // namespace stfs::sync
