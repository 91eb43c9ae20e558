#include "fs/write/staged_bytes.h"

#include <algorithm>
#include <vector>

#include "core/journal/journal_format.h"

namespace stfs {
namespace {

// Parts grow with the content, so a large content has few parts.
constexpr std::uint64_t kLeastPartBytes = 64 << 10;
constexpr std::uint64_t kMostPartBytes = std::uint64_t{1} << 30;

}  // namespace

std::map<std::uint64_t, StagedBytes::Part>::const_iterator StagedBytes::part_at(std::uint64_t offset) const {
  auto next = parts_.upper_bound(offset);
  if (next == parts_.begin()) return next;
  const auto before = std::prev(next);
  return offset - before->first < before->second.size_bytes ? before : next;
}

Result<void> StagedBytes::add_part(std::uint64_t offset, std::uint64_t wanted_bytes) {
  const auto next = part_at(offset);
  // Whole blocks begin at block boundaries of the file. After a part that was truncated, the first block is
  // not whole.
  std::uint64_t begin = round_down_to_block(offset);
  if (next != parts_.begin()) {
    const auto& [at, before] = *std::prev(next);
    begin = std::max(begin, at + before.size_bytes);
  }
  const std::uint64_t grown = std::clamp(allocated_bytes_, kLeastPartBytes, kMostPartBytes);
  std::uint64_t end = round_up_to_block(offset + std::max(wanted_bytes, grown));
  if (next != parts_.end()) end = std::min(end, next->first);
  const std::uint64_t lead = begin - round_down_to_block(begin);
  auto place = file_->allocate(lead + end - begin);
  RETURN_IF_ERROR(place);
  parts_.emplace(begin, Part{end - begin, *place + lead});
  allocated_bytes_ += end - begin;
  return {};
}

Result<void> StagedBytes::write(std::span<const std::byte> from, std::uint64_t offset) {
  const auto range = ByteRange::checked(offset, from.size());
  if (!range || range->end() > kMostFileBytes) return fail_system(EFBIG, "staged bytes", "write");
  while (!from.empty()) {
    auto part = part_at(offset);
    if (part == parts_.end() || part->first > offset) {
      RETURN_IF_ERROR(add_part(offset, from.size()));
      part = part_at(offset);
    }
    const std::uint64_t in_part = offset - part->first;
    const auto piece = from.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(from.size(), part->second.size_bytes - in_part)));
    RETURN_IF_ERROR(file_->file().write(piece, part->second.place + in_part));
    offset += piece.size();
    from = from.subspan(piece.size());
    size_bytes_ = std::max(size_bytes_, offset);
  }
  return {};
}

Result<void> StagedBytes::read(std::span<std::byte> to, std::uint64_t offset) const {
  const auto file_bytes = parts_.empty() ? Result<std::uint64_t>(0) : file_->file().size_bytes();
  RETURN_IF_ERROR(file_bytes);
  while (!to.empty()) {
    const auto part = part_at(offset);
    const bool is_hole = part == parts_.end() || part->first > offset;
    const std::uint64_t left = part == parts_.end() ? to.size()
                               : is_hole            ? part->first - offset
                                                    : part->second.size_bytes - (offset - part->first);
    const auto piece = to.first(static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), left)));
    std::uint64_t there = 0;  // the end of a part may be after the end of the file
    if (!is_hole) {
      const std::uint64_t place = part->second.place + (offset - part->first);
      there = place < *file_bytes ? std::min<std::uint64_t>(piece.size(), *file_bytes - place) : 0;
      if (there > 0) {
        RETURN_IF_ERROR(file_->file().read(piece.first(static_cast<std::size_t>(there)), place));
      }
    }
    std::ranges::fill(piece.subspan(static_cast<std::size_t>(there)), std::byte{0});
    offset += piece.size();
    to = to.subspan(piece.size());
  }
  return {};
}

void StagedBytes::resize(std::uint64_t size_bytes) {
  while (!parts_.empty()) {
    const auto last = std::prev(parts_.end());
    auto& [offset, part] = *last;
    if (offset + part.size_bytes <= size_bytes) break;
    const std::uint64_t kept_bytes = offset < size_bytes ? size_bytes - offset : 0;
    const std::uint64_t gone_bytes = part.size_bytes - kept_bytes;
    file_->free({part.place + kept_bytes, gone_bytes});
    allocated_bytes_ -= gone_bytes;
    part.size_bytes = kept_bytes;
    if (kept_bytes > 0) break;
    parts_.erase(last);
  }
  size_bytes_ = size_bytes;
}

Result<void> StagedBytes::copy_to(StagedBytes& to, std::uint64_t offset) const {
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  std::vector<std::byte> piece;
  for (const auto& [begin, part] : parts_) {
    const std::uint64_t end = std::min(begin + part.size_bytes, size_bytes_);
    for (std::uint64_t at = std::max(begin, offset); at < end; at += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, end - at)));
      RETURN_IF_ERROR(read(piece, at));
      RETURN_IF_ERROR(to.write(piece, at - offset));
    }
  }
  if (size_bytes_ > offset) to.resize(size_bytes_ - offset);
  return {};
}

}  // namespace stfs
