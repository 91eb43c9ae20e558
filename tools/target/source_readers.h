// Refuses to copy a private file into a model that others may read, if another user may have moved the file.
//
// The user names a source by its path. Another user who may write the source's directory can move a private
// file of the user to this path. Its bytes would then be in the target, for all readers of the target.
#pragma once

#include <string>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/storage/file.h"

namespace stfs::tools {

/// Call before bytes of the source are read for the target. Accepts a source that has as few readers as the
/// target, a source whose directory only its readers may write (core/storage/directory_writers.h), and this
/// user's file with one link in a directory with the sticky bit: nobody else moves it there.
/// @param named  the source's path, for messages.
/// @return EPERM: another user may have moved the source to its place. ESTALE: its place is not known.
Result<void> check_source_readers(const Model& target, const File& source, const std::string& named);
/// Does the same for each shard of a model.
Result<void> check_source_readers(const Model& target, const Model& source, const std::string& named);

}  // namespace stfs::tools
