// Lists what a commit does to one archive. The plan is made once, from the staged bytes alone; locking,
// sealing and applying only read it. Recovery reads the same operations from the journal's record.
//
// Every operation so far writes blocks, which leaves the archive's stamp as it is. An operation that changes
// the size or the header also needs the stamp that it leaves behind.
#pragma once

#include <cstdint>
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
  /// The plan of a commit that changes nothing.
  CommitPlan() = default;
  /// Reads and writes no byte of the archive, so it needs no lock.
  /// @param before  the archive that the stages were made for.
  /// @param most_range_bytes  the longest range that one operation may name (File::most_range_bytes()).
  /// @param stages  all of one journal, ascending by the tensors' offsets.
  static Result<CommitPlan> make(const ArchiveStamp& before, std::uint64_t most_range_bytes,
                                 const std::vector<Staging*>& stages);

  [[nodiscard]] bool is_empty() const { return operations_.empty(); }
  /// The archive's stamp when the commit begins.
  [[nodiscard]] const ArchiveStamp& before() const { return before_; }
  /// The staged ranges: the commit locks their blocks.
  [[nodiscard]] const std::vector<ByteRange>& locks() const { return locks_; }
  /// Whole blocks without hashes, ascending and disjoint.
  [[nodiscard]] const std::vector<JournalRange>& operations() const { return operations_; }
  [[nodiscard]] std::uint64_t size_bytes() const;
  /// Ends the plan, for a caller that keeps the operations. Needs no memory.
  [[nodiscard]] std::vector<JournalRange> take_operations() && { return std::move(operations_); }

  /// Completes in the journal the blocks that the stages cover only in part: with the archive's own bytes,
  /// and with the bytes of other stages in the same block. The caller holds the archive's locks on these
  /// blocks. May be repeated.
  Result<void> complete_blocks(const File& archive, Journal& journal) const;

 private:
  class Planner;
  /// A copy of less than a block to its place in the journal.
  struct BlockPart {
    bool is_staged = false;  // whether it comes from the journal; otherwise from the archive
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t size_bytes = 0;
  };

  ArchiveStamp before_;
  std::vector<ByteRange> locks_;
  std::vector<BlockPart> parts_;  // in the order in which they have to be copied
  std::vector<JournalRange> operations_;
};

}  // namespace stfs
