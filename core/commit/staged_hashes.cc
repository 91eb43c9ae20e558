#include "core/commit/staged_hashes.h"

#include <cstring>
#include <iterator>

namespace stfs {
namespace {

// The commit hashes a smaller write as fast.
constexpr std::uint64_t kLargeBytes = 128 << 10;

}  // namespace

void StagedHashes::note_write(std::span<const std::byte> bytes, std::uint64_t offset) {
  const ByteRange written = {offset, bytes.size()};
  if (written.size_bytes < kLargeBytes) return forget(written);
  std::uint64_t begin = round_up_to_block(offset);
  const std::uint64_t end = round_down_to_block(written.end());
  const std::uint64_t head_bytes = begin - offset;
  hashes_.clear();
  if (head_bytes > 0 && !tail_range_.empty() && tail_range_.end() == offset) {
    std::memcpy(tail_.data() + tail_range_.size_bytes, bytes.data(), head_bytes);
    append_block_hashes(tail_, hashes_);
    begin -= kBlockBytes;
  }
  append_block_hashes(bytes.subspan(head_bytes, end - (offset + head_bytes)), hashes_);
  forget(written);
  put(begin, hashes_);
  tail_range_ = {end, written.end() - end};
  std::memcpy(tail_.data(), bytes.data() + (end - offset), tail_range_.size_bytes);
}

void StagedHashes::forget(ByteRange range) {
  tail_range_ = {};
  if (range.empty() || runs_.empty()) return;
  const std::uint64_t begin = round_down_to_block(range.offset);
  const std::uint64_t end = round_up_to_block(range.end());
  auto run = runs_.lower_bound(begin);
  if (run != runs_.begin() && std::prev(run)->second > begin) --run;
  while (run != runs_.end() && run->first < end) {
    const auto [run_begin, run_end] = *run;
    run = runs_.erase(run);
    if (run_begin < begin) runs_.emplace(run_begin, begin);
    if (run_end > end) runs_.emplace(end, run_end);
  }
}

void StagedHashes::put(std::uint64_t offset, std::span<const std::uint64_t> hashes) {
  if (hashes.empty()) return;
  if (!region_) region_ = journal_.allocate(blocks_.size_bytes / kBlockBytes * sizeof(std::uint64_t));
  if (journal_.write(std::as_bytes(hashes), place_of(offset)))
    add(offset, offset + hashes.size() * kBlockBytes);
}

void StagedHashes::add(std::uint64_t begin, std::uint64_t end) {
  auto next = runs_.lower_bound(begin);
  if (next != runs_.end() && next->first == end) {
    end = next->second;
    next = runs_.erase(next);
  }
  if (next != runs_.begin() && std::prev(next)->second == begin) {
    std::prev(next)->second = end;
  } else {
    runs_.emplace_hint(next, begin, end);
  }
}

std::optional<ByteRange> StagedHashes::first_run(ByteRange range) const {
  auto run = runs_.upper_bound(range.offset);
  if (run != runs_.begin() && std::prev(run)->second > range.offset) --run;
  if (run == runs_.end()) return std::nullopt;
  const ByteRange known = ByteRange{run->first, run->second - run->first}.intersection(range);
  return known.empty() ? std::nullopt : std::optional(known);
}

Result<void> StagedHashes::read(ByteRange run, std::span<std::uint64_t> hashes) const {
  return journal_.read(std::as_writable_bytes(hashes), place_of(run.offset));
}

}  // namespace stfs
