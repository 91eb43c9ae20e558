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

  /// Reads all parts of a transfer. Small parts that are neighbours in the file are read in one call and then
  /// moved apart. The bytes between parts become zero.
  /// @param to  of transfer.size_bytes.
  Result<void> read(const Transfer& transfer, std::span<std::byte> to);
  /// Reads one part to its offset in `to`.
  Result<void> read_part(const Part& part, std::span<std::byte> to);

 private:
  const TransferList& list_;
  std::vector<std::byte> scratch_;
};

}  // namespace stfs::upload
