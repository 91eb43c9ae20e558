// Replaces an archive by a new file that is whole. Used for a save in which most bytes are new. A transaction
// in place would write these bytes twice, to a journal and to the archive, and tensors of other sizes would
// leave fillers.
//
//   1. the caller syncs the bytes of the new file: that takes long, and no other process waits for it
//   2. lock the archive as an edit does: no other process is in a commit, and no journal holds a commit
//   3. check that the path still names the archive that was opened; then make the caller's check
//   4. give the new file the old file's mode, owner and attributes, and sync these
//   5. name the new file ".NAME.stj.ID.staged", and rename it to the archive's path: THE COMMIT POINT
//   6. sync the directory, and unlock the old file
//
// After a crash the archive is the old one or the new one, whole. Before step 5 the new file has no name, so
// it disappears. Within step 5 it has the name of a staged journal, which the next recovery removes
// (journal/left_journals.h). Programs that have the old file open continue to read it. A commit to the old
// file fails with ESTALE: check_archive() finds that the path names another file. A journal names the inode
// and the birth time of its archive, so no journal is ever applied to the new file.
#pragma once

#include <functional>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/commit/commit_options.h"
#include "core/journal/journal_file.h"
#include "core/storage/file.h"

namespace stfs {

/// Makes the file for replace_archive(), without a name, and with disk space for this many bytes. EOPNOTSUPP:
/// the file system has no unnamed files. EPERM: the file would have another owner or group. EMLINK: the
/// archive has several names, and the new file would get only one of them. Otherwise the storage's error.
Result<JournalFile> begin_replacement(const Archive& archive, std::uint64_t size_bytes);

/// Replaces the archive by a file of begin_replacement(), which holds a valid archive. Before this call, the
/// caller retires the archive's lane journal.
/// @param check        is called under the archive's locks. Its error ends the replacement with nothing
///                     changed.
/// @param is_replaced  set if the path names the new file now, even if step 6 failed.
Result<void> replace_archive(Archive& archive, JournalFile& content, const CommitOptions& options,
                             const std::function<Result<void>()>& check, bool& is_replaced);

}  // namespace stfs
