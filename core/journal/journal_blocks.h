// Compares an archive's blocks with the old and new blocks that a journal knows.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

enum class KnownBlocks : std::uint8_t {
  AllOld,  // all are as they were before the commit
  AllNew,  // all are as the commit writes them
  Mixed,   // each is old or new, and both occur
  Torn,    // each is old, new, or has a sector of the new block: a power loss tore its write
  Other,   // some are neither old, new nor torn
};

/// Compares every block of the archive that the record names. The record need only be sound in itself: a
/// range beyond the archive's end gives Other.
Result<KnownBlocks> compare_blocks(const File& archive, const File& journal, const JournalRecord& record);

}  // namespace stfs
