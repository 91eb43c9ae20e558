// The operations of a commit on one archive. The plan is made once, from the staged bytes alone. Locking,
// sealing and applying only read it. Recovery reads the same operations from the journal's record.
//
// A patch writes blocks and leaves the archive's stamp unchanged. An edit also changes size and header, and
// may move tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/staging.h"
#include "core/journal/journal.h"
#include "core/storage/file.h"

namespace stfs {

/// Immutable after make().
class CommitPlan {
 public:
  /// Makes the plan of a commit that changes nothing.
  CommitPlan() = default;
  /// Reads and writes no byte of the archive, so it needs no lock.
  /// @param before  the archive that the stages were made for.
  /// @param most_range_bytes  the longest range that one operation may name (File::most_range_bytes()).
  /// @param stages  all stages of one journal, ascending by the tensors' offsets.
  static Result<CommitPlan> make(const ArchiveStamp& before, std::uint64_t most_range_bytes,
                                 const std::vector<Staging*>& stages);
  /// Does the same for an edit. InvalidArgument: after a crash, recovery would refuse the edit
  /// (writes_all_growth()).
  /// @param after  the archive after the edit. The stages hold its whole header.
  /// @param moves  bytes that the archive has elsewhere: complete_blocks() copies them into their stages.
  struct Move {
    std::uint64_t from = 0;  // offset in the archive
    const Staging* to = nullptr;
  };
  static Result<CommitPlan> make_edit(const ArchiveStamp& before, const ArchiveShape& after,
                                      std::uint64_t most_range_bytes, const std::vector<Staging*>& stages,
                                      const std::vector<Move>& moves);

  /// Makes the plan of patches, whose locks are held.
  /// @param ranges  of type PatchBytes, disjoint, in no order.
  static CommitPlan make_patches(const ArchiveStamp& before, std::vector<JournalRange> ranges);

  [[nodiscard]] bool is_empty() const { return operations_.empty(); }
  /// The archive's stamp when the commit begins.
  [[nodiscard]] const ArchiveStamp& before() const { return before_; }
  /// The archive's shape after an edit; nothing: this is a patch.
  [[nodiscard]] const std::optional<ArchiveShape>& after() const { return after_; }
  /// The staged ranges: a patch locks their blocks.
  [[nodiscard]] const std::vector<ByteRange>& locks() const { return locks_; }
  /// The operations, ascending and disjoint: whole blocks without hashes, or patches.
  [[nodiscard]] const std::vector<JournalRange>& operations() const { return operations_; }
  [[nodiscard]] std::uint64_t size_bytes() const;
  /// Ends the plan, for a caller that keeps the operations. Needs no memory.
  [[nodiscard]] std::vector<JournalRange> take_operations() && { return std::move(operations_); }

  /// Completes in the journal the blocks that the stages cover only in part: with bytes of the archive, and
  /// with bytes of other stages in the same block. First copies the tensors that an edit moves. The caller
  /// holds the archive's locks on these blocks. May be repeated.
  Result<void> complete_blocks(const File& archive, Journal& journal) const;

 private:
  class Planner;
  /// A copy to a place in the journal: less than a block, or a tensor that moves.
  struct BlockPart {
    enum class Source : std::uint8_t { Archive, Journal, Zeros };
    Source source = Source::Archive;
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t size_bytes = 0;
  };

  static Result<CommitPlan> make_of(Planner planner, std::uint64_t most_range_bytes,
                                    const std::vector<Staging*>& stages);

  ArchiveStamp before_;
  std::optional<ArchiveShape> after_;
  std::vector<ByteRange> locks_;
  std::vector<BlockPart> parts_;  // in the order in which they have to be copied
  std::vector<JournalRange> operations_;
};

}  // namespace stfs
