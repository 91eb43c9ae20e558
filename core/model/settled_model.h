// Checks whether an open model shows the bytes of one moment: no other process is in the middle of a commit.
//
// For readers that must not mix two versions. The reader opens the model, calls both functions, reads, and
// then checks that the files are unchanged (ArchiveReader::is_as_known()).
#pragma once

#include "core/base/error.h"
#include "core/model/model.h"

namespace stfs {

/// Fails with EAGAIN if another process may be writing to an archive of the model. That process holds a lock
/// of a commit or of an edit, or has published a journal. Fails also if the file's time is the kernel's
/// present time, because a further write might leave that time unchanged. On a file system without locks only
/// the times are checked.
Result<void> check_settled(const Model& model);

/// Fails with EAGAIN if a process died during a commit after the model was opened: the model's archive does
/// not show the commit, and an archive that is opened now would show it.
Result<void> check_shown(const Model& model);

}  // namespace stfs
