// Fills a piece of a transfer with the bytes of its parts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "tools/upload/transfers.h"

namespace stfs::upload {

/// Of one thread, whose scratch memory it keeps.
class PieceReader {
 public:
  explicit PieceReader(const TransferList& list) : list_(list) {}

  /// Small parts that are neighbours in the file are read in one go and moved apart. What lies between parts
  /// becomes zero.
  /// @param to  transfer.size_bytes.
  Result<void> read(const Transfer& transfer, std::span<std::byte> to);
  /// A part alone, to its offset in `to`.
  Result<void> read_part(const Part& part, std::span<std::byte> to);

 private:
  const TransferList& list_;
  std::vector<std::byte> scratch_;
};

}  // namespace stfs::upload
