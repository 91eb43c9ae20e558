// Turns staged bytes into whole blocks: the ranges that a journal's record will name.
#pragma once

#include <vector>

#include "core/base/error.h"
#include "core/commit/staging.h"
#include "core/journal/journal.h"
#include "core/storage/file.h"

namespace stfs {

/// Fills the blocks that the stages cover only in part with the archive's own bytes. Returns all blocks as
/// ranges without hashes, ascending and disjoint. A block that several stages share gets the bytes of all of
/// them. The caller holds the archive's locks on these blocks.
/// @param stages  all of one journal, ascending by the tensors' offsets.
Result<std::vector<JournalRange>> plan_blocks(const File& archive, std::uint64_t archive_size_bytes,
                                              Journal& journal, const std::vector<Staging*>& stages);

}  // namespace stfs
