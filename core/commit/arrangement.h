// The places of an archive's tensors. Compactions plan their steps with this class (compaction.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/byte_range.h"
#include "core/commit/archive_edit.h"
#include "core/commit/edit_space.h"

namespace stfs {

/// A tensor, or a filler that stays in its place.
struct Block : TensorAt {
  std::uint64_t alignment = 1;  // of the dtype's elements
  bool is_filler = false;       // true: `tensor` has no meaning

  /// Returns the first place at or behind the offset where the tensor's elements are aligned.
  [[nodiscard]] std::uint64_t place_from(std::uint64_t offset) const {
    return (offset + alignment - 1) / alignment * alignment;
  }
};

struct Arrangement {
  std::uint64_t least_data_at = 0;  // the header without padding ends here
  std::uint64_t data_at = 0;
  std::uint64_t size_bytes = 0;  // of the archive
  std::vector<Block> blocks;     // ascending, disjoint

  void sort();
  [[nodiscard]] std::uint64_t end_of_blocks() const {
    return blocks.empty() ? data_at : blocks.back().range.end();
  }
};

/// Bytes without a block, from the end of a block to the beginning of the next.
struct Gap {
  std::size_t next = 0;  // the block behind the gap; blocks.size(): none
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t size_bytes() const { return end - begin; }
};

/// Returns all gaps, ascending. The last one may have no block behind it.
std::vector<Gap> gaps_of(const Arrangement& now);

/// The moves of one step, and the arrangement after them.
struct Moves {
  Arrangement after;
  std::vector<EditLayout::Copy> copies;
  std::vector<EditLayout::Placed> placed;
  std::vector<std::uint32_t> copied{};  // like EditLayout::copied

  /// Copies a block to space that no block has. The caller sorts the blocks after the last move.
  void copy(std::size_t block, std::uint64_t to);
  /// Moves a block through the journal.
  void move(std::size_t block, std::uint64_t to);
  [[nodiscard]] std::uint64_t moved_bytes() const;
};

}  // namespace stfs
