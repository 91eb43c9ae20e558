// Passes once over the pieces, in the archive's order. The next piece may share the last listed block.
#include "core/commit/commit_plan.h"

#include <algorithm>
#include <array>
#include <span>

namespace stfs {

class CommitPlan::Planner {
 public:
  explicit Planner(const ArchiveStamp& before, std::optional<ArchiveShape> after = {})
      : size_after_(after ? after->size_bytes : before.size_bytes) {
    plan_.before_ = before;
    plan_.after_ = after;
  }

  /// Plans a move. Called before all pieces, because the moved bytes may be copied further.
  void move(const Move& move) {
    const ByteRange target = move.to->target();
    plan_.parts_.push_back(
        {.from = move.from, .to = move.to->journal_offset(target.offset), .size_bytes = target.size_bytes});
  }
  [[nodiscard]] std::uint64_t size_after() const { return size_after_; }

  /// @param next  the beginning of the next piece of the same stage. Bytes from there on are staged, and are
  ///              not filled from the archive.
  void add(const Staging& staging, ByteRange piece, std::uint64_t next) {
    plan_.locks_.push_back(piece);
    std::uint64_t begin = round_down_to_block(piece.offset);
    if (ranges_.empty() || begin >= ranges_.back().archive.end()) {
      fill(begin, piece.offset, staging);
    } else {
      // The first block is listed already.
      const bool is_in_place = place_of_last(piece.offset) == staging.journal_offset(piece.offset);
      if (!is_in_place) {
        // Another stage has listed the block and filled it from the archive: copy our bytes over it.
        const ByteRange shared = piece.intersection({begin, kBlockBytes});
        plan_.parts_.push_back({.source = BlockPart::Source::Journal,
                                .from = staging.journal_offset(shared.offset),
                                .to = place_of_last(shared.offset),
                                .size_bytes = shared.size_bytes});
      }
      begin += kBlockBytes;
      if (!is_in_place && piece.end() <= begin) return;
    }
    const std::uint64_t end = std::min(round_up_to_block(piece.end()), size_after_);
    fill(piece.end(), std::min(end, next), staging);
    if (piece.end() > begin) append({begin, end - begin}, staging.journal_offset(begin));
  }

  /// Returns the plan. Cuts the ranges into pieces of at most most_bytes.
  CommitPlan take(std::uint64_t most_bytes) {
    for (const JournalRange& range : ranges_) {
      for (std::uint64_t done = 0; done < range.archive.size_bytes; done += most_bytes) {
        plan_.operations_.push_back(
            {.archive = {range.archive.offset + done, std::min(most_bytes, range.archive.size_bytes - done)},
             .journal_offset = range.journal_offset + done,
             .new_hashes = {},
             .old_hashes = {}});
      }
    }
    return std::move(plan_);
  }

 private:
  [[nodiscard]] std::uint64_t place_of_last(std::uint64_t archive_offset) const {
    const JournalRange& last = ranges_.back();
    return last.journal_offset + (archive_offset - last.archive.offset);
  }

  void append(ByteRange blocks, std::uint64_t journal_offset) {
    if (!ranges_.empty() && ranges_.back().archive.end() == blocks.offset &&
        place_of_last(blocks.offset) == journal_offset) {
      ranges_.back().archive.size_bytes += blocks.size_bytes;
    } else {
      ranges_.push_back(
          {.archive = blocks, .journal_offset = journal_offset, .new_hashes = {}, .old_hashes = {}});
    }
  }

  /// Plans to copy the archive's bytes [begin, end), less than a block, to the stage's region. Behind the
  /// archive's end the bytes are zeros.
  void fill(std::uint64_t begin, std::uint64_t end, const Staging& staging) {
    const std::uint64_t there = std::clamp(plan_.before_.size_bytes, begin, std::max(begin, end));
    fill_from(BlockPart::Source::Archive, begin, there, staging);
    fill_from(BlockPart::Source::Zeros, there, end, staging);
  }
  void fill_from(BlockPart::Source source, std::uint64_t begin, std::uint64_t end, const Staging& staging) {
    if (begin >= end) return;
    plan_.parts_.push_back(
        {.source = source, .from = begin, .to = staging.journal_offset(begin), .size_bytes = end - begin});
  }

  CommitPlan plan_;
  const std::uint64_t size_after_;
  std::vector<JournalRange> ranges_;  // not yet cut
};

Result<CommitPlan> CommitPlan::make(const ArchiveStamp& before, std::uint64_t most_range_bytes,
                                    const std::vector<Staging*>& stages) {
  return make_of(Planner(before), most_range_bytes, stages);
}

Result<CommitPlan> CommitPlan::make_edit(const ArchiveStamp& before, const ArchiveShape& after,
                                         std::uint64_t most_range_bytes, const std::vector<Staging*>& stages,
                                         const std::vector<Move>& moves) {
  Planner planner(before, after);
  for (const Move& move : moves) planner.move(move);
  auto plan = make_of(std::move(planner), most_range_bytes, stages);
  if (!plan || writes_all_growth(before.size_bytes, after.size_bytes, plan->operations_)) return plan;
  return fail(ErrorCode::InvalidArgument, EINVAL, "the edit would make the archive longer without bytes");
}

Result<CommitPlan> CommitPlan::make_of(Planner planner, std::uint64_t most_range_bytes,
                                       const std::vector<Staging*>& stages) {
  for (Staging* staging : stages) {
    auto pieces = staging->pieces();
    RETURN_IF_ERROR(pieces);
    for (std::size_t at = 0; at < pieces->size(); ++at) {
      const std::uint64_t next = at + 1 < pieces->size() ? (*pieces)[at + 1].offset : planner.size_after();
      planner.add(*staging, (*pieces)[at], next);
    }
  }
  return planner.take(most_range_bytes);
}

CommitPlan CommitPlan::make_patches(const ArchiveStamp& before, std::vector<JournalRange> ranges) {
  CommitPlan plan;
  plan.before_ = before;
  std::ranges::sort(ranges, {}, [](const JournalRange& range) { return range.archive.offset; });
  plan.operations_ = std::move(ranges);
  return plan;
}

std::uint64_t CommitPlan::size_bytes() const {
  std::uint64_t total = 0;
  for (const JournalRange& range : operations_) total += range.archive.size_bytes;
  return total;
}

Result<void> CommitPlan::complete_blocks(const File& archive, Journal& journal) const {
  std::array<std::byte, kBlockBytes> block;
  for (const BlockPart& part : parts_) {
    if (part.size_bytes > block.size()) {
      auto copied = journal.file().copy_from(archive, part.from, {part.to, part.size_bytes});
      RETURN_IF_ERROR(copied);
      continue;
    }
    const auto bytes = std::span(block).first(static_cast<std::size_t>(part.size_bytes));
    Result<void> read;
    switch (part.source) {
      case BlockPart::Source::Archive: read = archive.read(bytes, part.from); break;
      case BlockPart::Source::Journal: read = journal.read(bytes, part.from); break;
      case BlockPart::Source::Zeros: std::ranges::fill(bytes, std::byte{0}); break;
    }
    RETURN_IF_ERROR(read);
    RETURN_IF_ERROR(journal.write(bytes, part.to));
  }
  return {};
}

}  // namespace stfs
