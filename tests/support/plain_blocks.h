// The blocks that a journal's record names, in the journal and in the archive, compared without the code of
// core/journal/journal_blocks.h.
//
// The record is sensible: each range lies in the archive that the record describes, and its new bytes lie in
// the journal.
#pragma once

#include <cstddef>
#include <span>

#include "core/journal/journal_format.h"
#include "tests/support/mutator.h"

namespace stfs::test {

/// Whether the journal has the new bytes of all ranges, and the new index or state.
bool has_new_blocks(std::span<const std::byte> journal, const JournalRecord& record);
/// Whether the archive has the old content of all ranges, by their old hashes. Of a lane, which has no
/// patches.
bool has_old_blocks(std::span<const std::byte> archive, const JournalRecord& record);
/// Whether the archive has, of each block, the old content or the new one.
bool has_only_its_blocks(std::span<const std::byte> archive, std::span<const std::byte> journal,
                         const JournalRecord& record);

/// What the archive has of the record's blocks. A block that the record does not change counts as neither new
/// nor old.
struct PlainFindings {
  bool has_new = false;
  bool has_old = false;
  bool has_torn = false;     // old and new in one block
  bool has_strange = false;  // neither
};
/// The journal has the new blocks.
PlainFindings compare_plain_blocks(std::span<const std::byte> archive, std::span<const std::byte> journal,
                                   const JournalRecord& record);

/// The archive after the record is applied. The journal has the new blocks.
Bytes applied(std::span<const std::byte> journal, std::span<const std::byte> archive,
              const JournalRecord& record);

}  // namespace stfs::test
