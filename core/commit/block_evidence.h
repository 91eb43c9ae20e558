// Adds to a journal's ranges the data that recovery compares blocks with: hashes of the new blocks, and the
// old blocks or their hashes.
#pragma once

#include <vector>

#include "core/base/error.h"
#include "core/commit/staging.h"
#include "core/journal/journal.h"
#include "core/journal/journal_apply.h"
#include "core/storage/file.h"

namespace stfs {

/// Shares large runs of old blocks with the journal, if files can share blocks. Divides a range of which only
/// a part is shared. Some blocks of an edit are not wholly in the archive (blocks_with_old_content()). These
/// have no old content.
Result<void> share_old_blocks(JournalRecord& record, File& archive, Journal& journal);

/// Hashes the new blocks of one range, and the old blocks unless the journal has them.
/// @param old_bytes  this many bytes of the range have old content.
/// @param on_bytes   is called with the count of new bytes, and with 0 from time to time while the old blocks
///                   are hashed.
Result<void> hash_range(JournalRange& range, std::uint64_t old_bytes, const File& archive,
                        const File& journal, const Stages& stages, const OnBytes& on_bytes);

}  // namespace stfs
