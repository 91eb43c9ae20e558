// Compares the blocks of a journal's record in the journal and in the archive, without the code of
// core/journal/journal_blocks.h.
//
// The record must be sensible: each range is inside the archive that the record describes, and its new bytes
// are inside the journal.
#pragma once

#include <cstddef>
#include <span>

#include "core/journal/journal_format.h"
#include "tests/support/mutator.h"

namespace stfs::test {

/// True if the journal has the new bytes of all ranges, and the new index or state.
bool has_new_blocks(std::span<const std::byte> journal, const JournalRecord& record);
/// True if the archive has the old content of all ranges, by their old hashes. For records of a lane, which
/// have no patches.
bool has_old_blocks(std::span<const std::byte> archive, const JournalRecord& record);
/// True if each block of the archive has its old content or its new content.
bool has_only_its_blocks(std::span<const std::byte> archive, std::span<const std::byte> journal,
                         const JournalRecord& record);

/// The states of the record's blocks in the archive. A block that the record does not change is neither new
/// nor old.
struct PlainFindings {
  bool has_new = false;
  bool has_old = false;
  bool has_torn = false;     // old and new in one block
  bool has_strange = false;  // neither
};
/// The journal must have the new blocks.
PlainFindings compare_plain_blocks(std::span<const std::byte> archive, std::span<const std::byte> journal,
                                   const JournalRecord& record);

/// The archive after the record is applied. The journal must have the new blocks.
Bytes applied(std::span<const std::byte> journal, std::span<const std::byte> archive,
              const JournalRecord& record);

}  // namespace stfs::test
