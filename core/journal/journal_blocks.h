// What an archive's blocks tell of a journal: whether they are the ones that the journal knows.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

enum class KnownBlocks : std::uint8_t {
  AllOld,  // as they were before the commit
  AllNew,  // as the commit wants them
  Mixed,   // each is the old one or the new one
  Torn,    // ... or holds sectors of the new one: a loss of power came while it was written
  Other,   // some are neither
};

/// Compares every block of the archive that the record names. The record is only known to be sound in itself:
/// a range behind the archive's end is Other.
Result<KnownBlocks> compare_blocks(const File& archive, const File& journal, const JournalRecord& record);

}  // namespace stfs
