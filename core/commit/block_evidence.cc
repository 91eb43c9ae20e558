// Shares and hashes blocks. Two threads hash old and new blocks if that is faster.
#include "core/commit/block_evidence.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "core/journal/journal_blocks.h"

namespace stfs {
namespace {

// From this size on, starting a thread costs much less than it saves.
constexpr std::uint64_t kTwoThreadsFromBytes = 16 << 20;
// A thread hashes this many bytes of the old blocks at once.
constexpr std::uint64_t kShareBytes = 4 << 20;

/// Takes the hashes of new blocks from the stages that have them. Reads and hashes the other blocks.
Result<void> hash_new(JournalRange& range, const File& journal, const Stages& stages,
                      const OnBytes& on_bytes) {
  const auto place_of = [&](std::uint64_t offset) {
    return std::span(range.new_hashes).subspan((offset - range.archive.offset) / kBlockBytes);
  };
  std::uint64_t done = range.archive.offset;
  const auto hash_up_to = [&](std::uint64_t end) {
    const ByteRange unknown = {range.journal_offset + (done - range.archive.offset), end - done};
    const auto place = place_of(done);
    done = end;
    return hash_blocks(journal, unknown, place, on_bytes);
  };
  // If the range's blocks are in a stage's region in the same order, the stage may have their hashes.
  for (const auto& [tensor, stage] : stages) {
    if (stage->journal_offset(range.archive.offset) != range.journal_offset) continue;
    while (const auto run = stage->hashes().first_run({done, range.archive.end() - done})) {
      RETURN_IF_ERROR(hash_up_to(run->offset));
      const auto place = place_of(run->offset).first(run->size_bytes / kBlockBytes);
      RETURN_IF_ERROR(stage->hashes().read(*run, place));
      if (on_bytes) on_bytes(run->size_bytes);
      done = run->end();
    }
  }
  return hash_up_to(range.archive.end());
}

}  // namespace

Result<void> share_old_blocks(JournalRecord& record, File& archive, Journal& journal) {
  std::vector<JournalRange>& ranges = record.ranges;
  std::vector<JournalRange> shared;
  shared.reserve(ranges.size() + 1);
  bool can_share = true;
  for (JournalRange& range : ranges) {
    if (range.is_patch()) {
      shared.push_back(std::move(range));
      continue;
    }
    // The archive may end in a partial block.
    const std::uint64_t whole_bytes =
        round_down_to_block(blocks_with_old_content(record, range.archive).size_bytes);
    if (can_share && whole_bytes >= kCloneFromBytes) {
      auto region = journal.share(archive, {range.archive.offset, whole_bytes});
      RETURN_IF_ERROR(region);
      can_share = region->has_value();
      if (can_share) {
        shared.push_back({.archive = {range.archive.offset, whole_bytes},
                          .journal_offset = range.journal_offset,
                          .old_offset = **region,
                          .new_hashes = {},
                          .old_hashes = {}});
        range.archive = {range.archive.offset + whole_bytes, range.archive.size_bytes - whole_bytes};
        range.journal_offset += whole_bytes;
      }
    }
    if (!range.archive.empty()) shared.push_back(std::move(range));
  }
  ranges = std::move(shared);
  return {};
}

Result<void> hash_range(JournalRange& range, std::uint64_t old_bytes, const File& archive,
                        const File& journal, const Stages& stages, const OnBytes& on_bytes) {
  if (range.is_patch()) return {};  // it has its hashes
  const std::uint64_t blocks = round_up_to_block(range.archive.size_bytes) / kBlockBytes;
  range.new_hashes.resize(blocks);
  if (range.old_offset != 0) return hash_new(range, journal, stages, on_bytes);
  range.old_hashes.resize(blocks);
  std::atomic<std::uint64_t> next = 0;
  const auto hash_old = [&](const OnBytes& on_piece) {
    return guard_memory([&]() -> Result<void> {
      for (;;) {
        const std::uint64_t begin = next.fetch_add(kShareBytes);
        if (begin >= old_bytes) return {};
        const ByteRange share = {range.archive.offset + begin, std::min(kShareBytes, old_bytes - begin)};
        const std::span place = std::span(range.old_hashes).subspan(begin / kBlockBytes);
        RETURN_IF_ERROR(hash_blocks(archive, share, place, on_piece));
      }
    });
  };
  // Another thread begins with the old blocks.
  Result<void> by_other;
  std::optional<std::thread> other;
  if (old_bytes >= kTwoThreadsFromBytes) {
    try {
      other.emplace([&] { by_other = hash_old({}); });
    } catch (const std::system_error&) {  // no thread: this thread hashes all blocks
    }
  }
  auto hashed = guard_memory([&] { return hash_new(range, journal, stages, on_bytes); });
  if (hashed) {
    hashed = hash_old([&](std::uint64_t) {
      if (on_bytes) on_bytes(0);
    });
  }
  if (!hashed) next = old_bytes;
  if (other) other->join();
  return hashed ? by_other : hashed;
}

}  // namespace stfs
