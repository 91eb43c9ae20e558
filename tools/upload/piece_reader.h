// Fills a piece of a transfer with the bytes of its parts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "tools/upload/transfers.h"

namespace stfs::upload {

/// Used by one thread. Keeps scratch memory between calls.
class PieceReader {
 public:
  explicit PieceReader(const TransferList& list) : list_(list) {}

  /// Reads all parts of a transfer. The bytes between parts become zero.
  /// @param to  of transfer.size_bytes.
  Result<void> read(const Transfer& transfer, std::span<std::byte> to);
  /// Reads one part to its offset in `to`.
  Result<void> read_part(const Part& part, std::span<std::byte> to);

 private:
  const TransferList& list_;
  std::vector<std::byte> scratch_;
};

/// Reads parts of tensors in the form that they have on the devices: converted to the dtype of their targets.
/// Used by one thread.
class TargetReader {
 public:
  TargetReader(const Plan& plan, const TransferList& list) : plan_(plan), list_(list), reader_(list) {}

  struct Piece {
    std::uint64_t offset = 0;  // in each target
    std::span<const std::byte> bytes;
  };
  /// @param range  of the Read's bytes in the archive: whole elements if they are converted.
  /// @return valid until the next call.
  Result<Piece> read(std::uint32_t number, ByteRange range);

 private:
  const Plan& plan_;
  const TransferList& list_;
  PieceReader reader_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> converted_;
};

}  // namespace stfs::upload
