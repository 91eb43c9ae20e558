#include "core/commit/arrangement.h"

#include <algorithm>
#include <utility>

namespace stfs {

void Arrangement::sort() {
  std::ranges::sort(blocks, {}, [](const Block& block) { return block.range.offset; });
}

std::vector<Gap> gaps_of(const Arrangement& now) {
  std::vector<Gap> gaps;
  std::uint64_t end = now.data_at;
  for (std::size_t at = 0; at < now.blocks.size(); ++at) {
    const ByteRange range = now.blocks[at].range;
    if (end < range.offset) gaps.push_back({at, end, range.offset});
    end = range.end();
  }
  if (end < now.size_bytes) gaps.push_back({now.blocks.size(), end, now.size_bytes});
  return gaps;
}

void Moves::copy(std::size_t block, std::uint64_t to) {
  ByteRange& range = after.blocks[block].range;
  copied.push_back(after.blocks[block].tensor);
  const std::uint64_t from = std::exchange(range.offset, to);
  if (!copies.empty()) {
    EditLayout::Copy& last = copies.back();
    if (last.from + last.size_bytes == from && last.to + last.size_bytes == to) {
      last.size_bytes += range.size_bytes;
      return;
    }
  }
  copies.push_back({from, to, range.size_bytes});
}

void Moves::move(std::size_t block, std::uint64_t to) {
  Block& moved = after.blocks[block];
  const std::uint64_t from = std::exchange(moved.range.offset, to);
  placed.push_back({moved.tensor, moved.range, from});
}

std::uint64_t Moves::moved_bytes() const {
  std::uint64_t total = 0;
  for (const EditLayout::Copy& copy : copies) total += copy.size_bytes;
  for (const EditLayout::Placed& one : placed) total += one.file_range.size_bytes;
  return total;
}

}  // namespace stfs
