// Whether a model that is open shows the bytes of one moment: no other process is in the middle of a commit.
//
// For readers that must not mix two versions. Such a reader opens the model, calls both functions, reads, and
// then looks whether the files are as known (ArchiveReader::is_as_known()).
#pragma once

#include "core/base/error.h"
#include "core/model/model.h"

namespace stfs {

/// Fails with EAGAIN if another process may be writing to an archive of the model: it holds a lock of a
/// commit or of an edit, or has published a journal; or the file's time is the kernel's present time, so that
/// a further write might not change it. On a file system without locks only the times are looked at.
Result<void> check_settled(const Model& model);

/// Fails with EAGAIN if a process has died during a commit after the model was opened: an archive does not
/// show the commit, and an archive that is opened now would.
Result<void> check_shown(const Model& model);

}  // namespace stfs
