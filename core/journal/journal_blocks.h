// Compares an archive's blocks with the old and new blocks that a journal knows.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

enum class KnownBlocks : std::uint8_t {
  AllOld,  // all have the content that they had before the commit
  AllNew,  // all have the content that the commit writes
  Mixed,   // each is old or new, and both occur
  Torn,    // each is old, new, or has a sector of the new block: a power loss tore its write
  Other,   // some are neither old, new nor torn
};

/// Returns the blocks of a range of the record that the archive had in full before the commit: the range
/// itself, unless an edit makes the archive longer.
ByteRange blocks_with_old_content(const JournalRecord& record, ByteRange range);

/// Compares every block of the archive that the record names. The record must be sound, but need not fit the
/// archive: a range beyond the archive's end gives Other.
///
/// In an edit, only blocks that the old archive had in full are compared. Its first block may begin with
/// kNoHeaderLength instead of the old or the new length. If no step of applying leaves the archive's size,
/// the result is Other.
Result<KnownBlocks> compare_blocks(const File& archive, const File& journal, const JournalRecord& record);

}  // namespace stfs
