// Makes one pass over the pieces in the archive's order. The next piece may share the last listed block.
#include "core/commit/block_plan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

namespace stfs {
namespace {

class Plan {
 public:
  Plan(const File& archive, std::uint64_t archive_size_bytes, Journal& journal)
      : archive_(archive), archive_size_bytes_(archive_size_bytes), journal_(journal) {}

  /// @param next  where the next piece of the same stage begins: its staged bytes must not be taken for a
  ///              gap.
  Result<void> add(const Staging& staging, ByteRange piece, std::uint64_t next) {
    std::uint64_t begin = round_down_to_block(piece.offset);
    if (ranges_.empty() || begin >= ranges_.back().archive.end()) {
      if (auto filled = fill(begin, piece.offset, staging); !filled) return filled;
    } else {
      // The first block is listed already.
      const bool is_in_place = place_of_last(piece.offset) == staging.journal_offset(piece.offset);
      if (!is_in_place) {
        // Another stage listed it and filled it from the archive: copy our bytes over it.
        const ByteRange shared = piece.intersection({begin, kBlockBytes});
        if (auto moved = copy(journal_, staging.journal_offset(shared.offset), place_of_last(shared.offset),
                              shared.size_bytes);
            !moved) {
          return moved;
        }
      }
      begin += kBlockBytes;
      if (!is_in_place && piece.end() <= begin) return {};
    }
    const std::uint64_t end = std::min(round_up_to_block(piece.end()), archive_size_bytes_);
    if (auto filled = fill(piece.end(), std::min(end, next), staging); !filled) return filled;
    if (piece.end() > begin) append({begin, end - begin}, staging.journal_offset(begin));
    return {};
  }

  /// Returns the ranges, cut into pieces of at most most_range_bytes() (see kMostRangeBytes).
  std::vector<JournalRange> take() const {
    const std::uint64_t most_bytes = archive_.most_range_bytes();
    std::vector<JournalRange> pieces;
    for (const JournalRange& range : ranges_) {
      for (std::uint64_t done = 0; done < range.archive.size_bytes; done += most_bytes) {
        pieces.push_back(
            {.archive = {range.archive.offset + done, std::min(most_bytes, range.archive.size_bytes - done)},
             .journal_offset = range.journal_offset + done,
             .new_hashes = {},
             .old_hashes = {}});
      }
    }
    return pieces;
  }

 private:
  std::uint64_t place_of_last(std::uint64_t archive_offset) const {
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

  /// Copies the archive's own bytes [begin, end), less than a block, to their place in the stage's region.
  Result<void> fill(std::uint64_t begin, std::uint64_t end, const Staging& staging) {
    if (begin >= end) return {};
    return copy(archive_, begin, staging.journal_offset(begin), end - begin);
  }

  template <class Source>
  Result<void> copy(const Source& from, std::uint64_t offset, std::uint64_t to, std::uint64_t size_bytes) {
    std::array<std::byte, kBlockBytes> block;
    const auto part = std::span(block).first(static_cast<std::size_t>(size_bytes));
    if (auto read = from.read(part, offset); !read) return read;
    return journal_.write(part, to);
  }

  const File& archive_;
  const std::uint64_t archive_size_bytes_;
  Journal& journal_;
  std::vector<JournalRange> ranges_;
};

}  // namespace

Result<std::vector<JournalRange>> plan_blocks(const File& archive, std::uint64_t archive_size_bytes,
                                              Journal& journal, const std::vector<Staging*>& stages) {
  Plan plan(archive, archive_size_bytes, journal);
  for (Staging* staging : stages) {
    auto pieces = staging->pieces();
    if (!pieces) return pass_on(std::move(pieces));
    for (std::size_t at = 0; at < pieces->size(); ++at) {
      const std::uint64_t next = at + 1 < pieces->size() ? (*pieces)[at + 1].offset : archive_size_bytes;
      if (auto added = plan.add(*staging, (*pieces)[at], next); !added) return pass_on(std::move(added));
    }
  }
  return plan.take();
}

}  // namespace stfs
