#include "core/commit/staging.h"

#include <fmt/format.h>

#include <algorithm>

namespace stfs {
namespace {

constexpr std::uint64_t kZeroesAtOnceBytes = 64 * 1024;
constexpr std::uint64_t kReserveFromBytes = 4 << 20;
constexpr std::uint64_t kReserveBytes = 256 << 20;

constexpr ByteRange blocks_of(ByteRange range) {
  const std::uint64_t begin = round_down_to_block(range.offset);
  return {begin, round_up_to_block(range.end()) - begin};
}

}  // namespace

Staging::Staging(Journal& journal, ByteRange target)
    : journal_(journal),
      target_(target),
      region_(journal.allocate(blocks_of(target).size_bytes)),
      hashes_(journal, blocks_of(target)),
      size_bytes_(target.size_bytes),
      kept_bytes_(target.size_bytes) {}

Result<void> Staging::write(std::span<const std::byte> from, std::uint64_t offset) {
  return guard_memory([&] { return write_unguarded(from, offset); });
}

Result<void> Staging::write_unguarded(std::span<const std::byte> from, std::uint64_t offset) {
  const auto range = ByteRange::checked(offset, from.size());
  if (!range || range->end() > target_.size_bytes) {
    return fail(ErrorCode::WrongSize, EFBIG,
                fmt::format("{} bytes at offset {} exceed the tensor's size of {}", from.size(), offset,
                            target_.size_bytes));
  }
  if (from.empty()) return {};
  reserve_ahead(*range);
  RETURN_IF_ERROR(put(from, offset));
  note_unguarded(from, offset);
  return {};
}

Result<void> Staging::put(std::span<const std::byte> from, std::uint64_t offset) {
  return guard_memory([&] { return journal_.write(from, place(offset)); });
}

Result<void> Staging::note(std::span<const std::byte> from, std::uint64_t offset) {
  return guard_memory([&]() -> Result<void> {
    note_run({offset, from.size()});
    note_unguarded(from, offset);
    return {};
  });
}

void Staging::note_unguarded(std::span<const std::byte> from, std::uint64_t offset) {
  const std::uint64_t end = offset + from.size();
  hashes_.note_write(from, target_.offset + offset);
  add_extent(offset, end);
  size_bytes_ = std::max(size_bytes_, end);
  is_dirty_ = true;
  // A reservation covers one write: to rewrite a block may need a new reservation.
  if (end > reserved_.offset && offset < reserved_.end()) {
    const std::uint64_t begin = std::min(end, reserved_.end());
    reserved_ = {begin, reserved_.end() - begin};
  }
}

void Staging::note_run(ByteRange range) {
  if (range.offset != run_.end()) run_ = {range.offset, 0};
  run_.size_bytes += range.size_bytes;
}

void Staging::reserve_ahead(ByteRange range) {
  // Sequential writers usually continue. Reserved blocks cost the file system far less than blocks that it
  // has to find at writeback. Reserve as many bytes as were written so far, so that a small patch stays
  // small.
  note_run(range);
  if (!may_reserve_ || run_.size_bytes < kReserveFromBytes || reserved_.contains(range)) return;
  // Reserve only up to bytes that were written already: a reservation covers only a first write.
  const auto next = extents_.upper_bound(range.offset);
  if (next != extents_.begin() && std::prev(next)->second > range.offset) return;
  const std::uint64_t limit = next == extents_.end() ? target_.size_bytes : next->first;
  if (limit < range.end()) return;
  if (!reserved_.contains({range.offset, 0})) reserved_ = {range.offset, 0};
  const std::uint64_t end = std::min(run_.end() + std::min(run_.size_bytes, kReserveBytes), limit);
  const std::uint64_t begin = reserved_.end();
  // The reservation is an optimization. If it does not fit, the write itself reports the lack of space.
  may_reserve_ = journal_.reserve({place(begin), end - begin}).has_value();
  if (may_reserve_) reserved_.size_bytes = end - reserved_.offset;
}

void Staging::expect_all() {
  add_extent(0, target_.size_bytes);
  is_dirty_ = true;
}

Result<void> Staging::write_all(std::uint64_t size_bytes, const ReadBase& read_piece) {
  constexpr std::uint64_t kPieceBytes = 4 << 20;
  std::vector<std::byte> buffer;
  for (std::uint64_t done = 0; done < size_bytes; done += buffer.size()) {
    buffer.resize(static_cast<std::size_t>(std::min(kPieceBytes, size_bytes - done)));
    RETURN_IF_ERROR(read_piece(buffer, done));
    RETURN_IF_ERROR(write(buffer, done));
  }
  return {};
}

Result<void> Staging::resize(std::uint64_t size_bytes) {
  return guard_memory([&] { return resize_unguarded(size_bytes); });
}

Result<void> Staging::resize_unguarded(std::uint64_t size_bytes) {
  if (size_bytes > target_.size_bytes) {
    return fail(
        ErrorCode::WrongSize, EFBIG,
        fmt::format("a size of {} bytes exceeds the tensor's size of {}", size_bytes, target_.size_bytes));
  }
  // A size that stays the same changes nothing: a tool that "truncates" to the current size has written
  // nothing.
  if (size_bytes == size_bytes_) return {};
  if (size_bytes == 0) {
    if (auto reserved = journal_.reserve({place(0), target_.size_bytes}); !reserved) return reserved;
    if (extents_.empty() && may_reserve_) reserved_ = {0, target_.size_bytes};
  }
  if (size_bytes < size_bytes_) {
    if (!extents_.empty()) {  // the extents that were written there are forgotten now
      may_reserve_ = false;
      reserved_ = {};
    }
    drop_extents_from(size_bytes);
    kept_bytes_ = std::min(kept_bytes_, size_bytes);
  }
  size_bytes_ = size_bytes;
  is_dirty_ = true;
  return {};
}

Result<void> Staging::read(std::span<std::byte> to, std::uint64_t offset, const ReadBase& read_base) {
  auto extent = extents_.upper_bound(offset);
  if (extent != extents_.begin() && std::prev(extent)->second > offset) --extent;
  while (!to.empty()) {
    const bool is_staged = extent != extents_.end() && extent->first <= offset;
    std::uint64_t end = offset + to.size();
    if (is_staged) {
      end = std::min(end, extent->second);
    } else if (extent != extents_.end()) {
      end = std::min(end, extent->first);
    }
    if (!is_staged && offset < kept_bytes_) end = std::min(end, kept_bytes_);

    const std::span<std::byte> part = to.first(static_cast<std::size_t>(end - offset));
    Result<void> read;
    if (is_staged) {
      read = journal_.read(part, place(offset));
    } else if (offset < kept_bytes_) {
      read = read_base(part, offset);
    } else {
      std::ranges::fill(part, std::byte{0});
    }
    RETURN_IF_ERROR(read);
    if (is_staged && end == extent->second) ++extent;
    to = to.subspan(part.size());
    offset = end;
  }
  return {};
}

Result<std::vector<ByteRange>> Staging::pieces() {
  return guard_memory([&] { return pieces_unguarded(); });
}

Result<std::vector<ByteRange>> Staging::pieces_unguarded() {
  // A gap behind the kept old content is a hole that the writer has left. Its zeros must reach the archive
  // like other bytes.
  std::uint64_t at = kept_bytes_;
  std::vector<ByteRange> gaps;
  for (const auto& [begin, end] : extents_) {
    if (begin > at) gaps.push_back({at, begin - at});
    at = std::max(at, end);
  }
  if (at < size_bytes_) gaps.push_back({at, size_bytes_ - at});
  for (const ByteRange gap : gaps) {
    RETURN_IF_ERROR(fill_gap(gap.offset, gap.end()));
  }
  std::vector<ByteRange> pieces;
  pieces.reserve(extents_.size());
  for (const auto& [begin, end] : extents_) pieces.push_back({target_.offset + begin, end - begin});
  return pieces;
}

void Staging::add_extent(std::uint64_t begin, std::uint64_t end) {
  auto next = extents_.upper_bound(begin);
  if (next != extents_.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != extents_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = extents_.erase(next);
  }
  extents_.emplace_hint(next, begin, end);
}

void Staging::drop_extents_from(std::uint64_t begin) {
  extents_.erase(extents_.lower_bound(begin), extents_.end());
  if (!extents_.empty() && extents_.rbegin()->second > begin) extents_.rbegin()->second = begin;
  hashes_.forget({target_.offset + begin, target_.size_bytes - begin});
}

Result<void> Staging::fill_gap(std::uint64_t begin, std::uint64_t end) {
  // Write the zeros explicitly: the region may still have bytes that were staged before a cut.
  const std::vector<std::byte> zeroes(static_cast<std::size_t>(std::min(kZeroesAtOnceBytes, end - begin)));
  for (std::uint64_t at = begin; at < end; at += zeroes.size()) {
    const auto part =
        std::span(zeroes).first(std::min<std::size_t>(zeroes.size(), static_cast<std::size_t>(end - at)));
    RETURN_IF_ERROR(journal_.write(part, place(at)));
  }
  hashes_.forget({target_.offset + begin, end - begin});
  add_extent(begin, end);
  return {};
}

}  // namespace stfs
