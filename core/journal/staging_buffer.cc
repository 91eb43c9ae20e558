// Keeps the file's blocks in a map by offset.
#include "core/journal/staging_buffer.h"

#include <algorithm>

namespace stfs {
namespace {

/// Calls on_part with each block's offset and the part of the range in the block.
template <class OnPart>
void for_each_block(ByteRange range, const OnPart& on_part) {
  while (!range.empty()) {
    const std::uint64_t block = round_down_to_block(range.offset);
    const ByteRange part = {range.offset, std::min(range.end(), block + kBlockBytes) - range.offset};
    on_part(block, part);
    range = {part.end(), range.end() - part.end()};
  }
}

tl::unexpected<Error> only_in_memory(std::string_view action) {
  return fail_system(EOPNOTSUPP, "staged bytes in memory", action);
}

}  // namespace

std::size_t StagingBuffer::blocks_with(ByteRange range) const {
  if (range.empty()) return blocks_.size();
  const std::uint64_t begin = round_down_to_block(range.offset);
  const std::uint64_t end = round_up_to_block(range.end());
  const auto there = std::distance(blocks_.lower_bound(begin), blocks_.lower_bound(end));
  return blocks_.size() + (end - begin) / kBlockBytes - static_cast<std::size_t>(there);
}

Result<void> StagingBuffer::read(std::span<std::byte> to, std::uint64_t offset) const {
  for_each_block({offset, to.size()}, [&](std::uint64_t block, ByteRange part) {
    const std::span<std::byte> piece = to.subspan(part.offset - offset, part.size_bytes);
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) {
      std::ranges::fill(piece, std::byte{0});
    } else {
      std::ranges::copy(std::span(found->second).subspan(part.offset - block, part.size_bytes), piece.data());
    }
  });
  return {};
}

Result<void> StagingBuffer::write(std::span<const std::byte> from, std::uint64_t offset) {
  return guard_memory([&]() -> Result<void> {
    for_each_block({offset, from.size()}, [&](std::uint64_t block, ByteRange part) {
      std::ranges::copy(from.subspan(part.offset - offset, part.size_bytes),
                        blocks_.try_emplace(block).first->second.data() + (part.offset - block));
    });
    return {};
  });
}

Result<void> StagingBuffer::copy_to(File& file) const {
  for (const auto& [offset, block] : blocks_) {
    RETURN_IF_ERROR(file.write(block, offset));
  }
  return {};
}

Result<void> StagingBuffer::clone_from(const File&, std::uint64_t, ByteRange) {
  return only_in_memory("clone blocks");
}

Result<void> StagingBuffer::sync() {
  return only_in_memory("sync");
}

Result<FileStatus> StagingBuffer::status() const {
  return only_in_memory("query");
}

Result<std::optional<LockConflict>> StagingBuffer::try_lock(ByteRange, LockKind) {
  return only_in_memory("lock");
}

}  // namespace stfs
