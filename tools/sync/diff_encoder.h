// Makes the published diff of a tensor from its old and its new bytes.
//
// The tensor is read in pieces, so memory does not grow with its size: a thread needs about 3 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {

/// A tensor of two models, of the same size in both.
struct TensorChange {
  std::uint64_t size_bytes = 0;
  ReadPiece before{};
  ReadPiece after{};
};

struct EncodedDiff {
  bool is_changed = false;       // false: nothing was written
  std::uint64_t size_bytes = 0;  // of the frame
  std::string checksum{};        // of the tensor's new bytes
};

/// Used by one thread, for any number of tensors: the encoder keeps its memory from one tensor to the next.
class DiffEncoder {
 public:
  /// Receives the next bytes of the frame.
  using Sink = std::function<Result<void>(std::span<const std::byte>)>;

  DiffEncoder(DiffEncoding encoding, ChecksumFormat checksum_format);
  ~DiffEncoder();
  DiffEncoder(const DiffEncoder&) = delete;
  DiffEncoder& operator=(const DiffEncoder&) = delete;

  /// Writes the diff to `sink` as one zstd frame that records the size of its content. Writes nothing if the
  /// tensor has not changed. Reads the tensor once, or three times for an overwrite diff of more than 128 Ki
  /// changes.
  /// @param work  counts the bytes of the tensor, once each.
  /// @return the errors of reading and of the sink; EINTR: the work was stopped; EFBIG: an overwrite diff
  ///   cannot reach all of the tensor; ESTALE (ArchiveChanged): the bytes changed during the call.
  Result<EncodedDiff> encode(const TensorChange& change, const Sink& sink, Work& work);
  /// Returns the number of bytes that the last encode() has counted: all of the tensor, or fewer after a
  /// failure.
  [[nodiscard]] std::uint64_t counted_bytes() const { return counted_bytes_; }

 private:
  class Frame;
  /// Calls `take(offset)` for each piece, with before_ and after_ filled.
  template <class Take>
  Result<void> for_each_piece(const TensorChange& change, const Take& take);
  /// Counts the bytes of the piece that was read.
  Result<void> count_piece(Work& work);
  Result<EncodedDiff> encode_xor(const TensorChange& change, const Sink& sink, Work& work);
  Result<EncodedDiff> encode_overwrite(const TensorChange& change, const Sink& sink, Work& work);
  /// Keeps positions and values of a piece's changes. @return their number.
  std::size_t collect(std::uint64_t offset);
  /// Writes all positions in a first pass, and all values in a second pass.
  Result<void> write_in_passes(const TensorChange& change, std::uint64_t count);

  const DiffEncoding encoding_;
  const ChecksumFormat checksum_format_;
  std::unique_ptr<Frame> frame_;
  std::uint64_t counted_bytes_ = 0;
  // A piece of the tensor.
  std::vector<std::byte> before_buffer_;
  std::vector<std::byte> after_buffer_;
  std::span<std::byte> before_;
  std::span<std::byte> after_;
  // For overwrite.
  std::vector<std::uint32_t> positions_;
  std::vector<std::byte> values_;
};

}  // namespace stfs::sync
