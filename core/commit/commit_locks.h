// Takes an archive's locks for a commit, and checks under them that the archive is still the one that was
// opened.
#pragma once

#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/commit_options.h"
#include "core/journal/file_lock.h"

namespace stfs {

/// Locks the header's byte shared and the blocks of `ranges` exclusively, in ascending order. Recovers the
/// journals that dead owners have left. Waits for the journals of living ones. Busy (EBUSY):
/// options.lock_patience has passed.
Result<ArchiveLocks> lock_for_commit(Archive& archive, const std::vector<ByteRange>& ranges,
                                     const CommitOptions& options);

/// Call this under the locks. ArchiveChanged (ESTALE): the path names another file, or the header has
/// changed. EMLINK: the archive has several hard links. Adopts foreign changes of the bytes, if
/// on_foreign_change allows.
Result<void> check_archive(Archive& archive, const CommitOptions& options);

}  // namespace stfs
