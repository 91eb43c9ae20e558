// Hashes of the whole blocks that come in large writes, taken while the bytes are in the processor's cache:
// the commit would have to read them again.
//
// They lie in a region of the journal, so that memory does not grow with the tensor. Only a favour: what is
// not known here is hashed by the commit.
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

/// Offsets are those of the archive. Not synchronized.
class StagedHashes {
 public:
  /// The journal must outlive it.
  /// @param blocks  what may be written: whole blocks.
  StagedHashes(Journal& journal, ByteRange blocks) : journal_(journal), blocks_(blocks) {}

  /// These bytes have been staged. May throw std::bad_alloc.
  void note_write(std::span<const std::byte> bytes, std::uint64_t offset);
  /// What is staged there changes in another way.
  void forget(ByteRange range);

  /// The first run of whole blocks in that range whose hashes are known.
  [[nodiscard]] std::optional<ByteRange> first_run(ByteRange range) const;
  /// Of the blocks of such a run.
  Result<void> read(ByteRange run, std::span<std::uint64_t> hashes) const;

 private:
  void put(std::uint64_t offset, std::span<const std::uint64_t> hashes);
  void add(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::uint64_t place_of(std::uint64_t offset) const {
    return *region_ + (offset - blocks_.offset) / kBlockBytes * sizeof(std::uint64_t);
  }

  Journal& journal_;
  const ByteRange blocks_;
  std::optional<std::uint64_t> region_;          // in the journal
  std::map<std::uint64_t, std::uint64_t> runs_;  // begin -> end, of whole blocks, disjoint, never adjacent
  // The block that the last write ended in the middle of: the next one may go on there.
  std::array<std::byte, kBlockBytes> tail_{};
  ByteRange tail_range_;
  std::vector<std::uint64_t> hashes_;  // of one write
};

}  // namespace stfs
