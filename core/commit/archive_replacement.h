// Replaces an archive by a new file that is whole: for a save in which most bytes are new. In place, these
// bytes would be written twice, to a journal and to the archive, and tensors of other sizes would leave
// fillers.
//
//  1. the caller syncs the bytes of the new file: that takes long, and nobody waits meanwhile
//  2. lock the archive as an edit does: no other process is in a commit, and no journal holds one
//  3. check that the path still names the archive that was opened; then the caller's own check
//  4. give the new file the old one's mode, owner and attributes, and sync these
//  5. name it ".NAME.stj.ID.staged", and rename it to the archive's path: THE COMMIT POINT
//  6. sync the directory, and unlock the old file
//
// A crash leaves the old archive or the new one, whole. Before step 5 the new file has no name, so nothing
// stays of it. Within step 5 it has the name of a staged journal, which the next recovery removes
// (journal/left_journals.h). Programs that have the old file open go on reading it. A commit to it fails with
// ESTALE: check_archive() sees that the path names another file. Journals name the inode and the birth time
// of their archive, so none is ever applied to the new file.
#pragma once

#include <functional>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/commit/commit_options.h"
#include "core/journal/journal_file.h"
#include "core/storage/file.h"

namespace stfs {

/// Makes the file for replace_archive(), without a name, with disk space for that many bytes.
/// EOPNOTSUPP: the store has no unnamed files. EPERM: the file would have another owner or group. EMLINK: the
/// archive has several names, and only one of them would become the new file's. Else as the store fails.
Result<JournalFile> begin_replacement(const Archive& archive, std::uint64_t size_bytes);

/// Replaces the archive by a file of begin_replacement(), which holds a valid archive. The caller has retired
/// the archive's lane journal.
/// @param check        runs under the archive's locks. Its error ends the replacement with nothing changed.
/// @param is_replaced  set if the path names the new file now, also after a failure of step 6.
Result<void> replace_archive(Archive& archive, JournalFile& content, const CommitOptions& options,
                             const std::function<Result<void>()>& check, bool& is_replaced);

}  // namespace stfs
