// Hashes whole blocks of large writes while their bytes are in the processor's cache. Otherwise the commit
// would have to read the bytes again.
//
// The hashes are in a region of the journal, so that memory does not grow with the tensor. This is only an
// optimization: the commit hashes every block whose hash is not known here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/journal/journal.h"

namespace stfs {

/// Offsets are absolute in the archive. Not synchronized.
class StagedHashes {
 public:
  /// The journal must outlive this object.
  /// @param blocks  the whole blocks that may be written.
  StagedHashes(Journal& journal, ByteRange blocks) : journal_(journal), blocks_(blocks) {}

  /// Called after these bytes have been staged. May throw std::bad_alloc.
  void note_write(std::span<const std::byte> bytes, std::uint64_t offset);
  /// Forgets the hashes of a range that is staged in any other way.
  void forget(ByteRange range);

  /// Returns the first run of whole blocks in `range` whose hashes are known.
  [[nodiscard]] std::optional<ByteRange> first_run(ByteRange range) const;
  /// Reads the hashes of a run that first_run() has returned.
  Result<void> read(ByteRange run, std::span<std::uint64_t> hashes) const;

 private:
  void put(std::uint64_t offset, std::span<const std::uint64_t> hashes);
  void add(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::uint64_t place_of(std::uint64_t offset) const {
    return *region_ + (offset - blocks_.offset) / kBlockBytes * sizeof(std::uint64_t);
  }

  Journal& journal_;
  const ByteRange blocks_;
  std::optional<std::uint64_t> region_;          // in the journal, in bytes
  std::map<std::uint64_t, std::uint64_t> runs_;  // begin -> end, of whole blocks, disjoint, never adjacent
  // The partial block at the end of the last write. The next write may complete it.
  std::array<std::byte, kBlockBytes> tail_{};
  ByteRange tail_range_;
  std::vector<std::uint64_t> hashes_;  // of one write; kept to reuse its memory
};

}  // namespace stfs
