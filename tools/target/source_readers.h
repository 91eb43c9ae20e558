// Refuses to copy a private file into a model that others may read, if another user may have moved the file.
//
// The user names a source by its path. Another user who may write the source's directory can move a private
// file of the user to this path. Its bytes would then be in the target, for all readers of the target.
#pragma once

#include <filesystem>
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
/// Does the same for a directory whose users may read the files in it.
/// @param target_path  for messages.
Result<void> check_source_readers(int target, const std::filesystem::path& target_path, const Model& source);

/// Call before others get the bytes of a model that was opened with the links of all users followed
/// (Links::All).
/// @param named  the path by which the user has named the model.
/// @return EACCES: another user's link leads there (core/storage/trusted_links.h). ESTALE: another file is
/// there now.
Result<void> check_trusted_links(const std::string& named, const Model& model);

}  // namespace stfs::tools
