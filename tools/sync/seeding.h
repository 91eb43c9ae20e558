// Gives a model the files of a full version: on a host that has none yet, or that has a model with other
// tensors.
#pragma once

#include <filesystem>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/sync/published_version.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {

/// Replaces the model, if there is one, by the version: all files of the version are copied beside it, then
/// one rename makes them the model (file_switch.h). Then the archives of the model before go. Foreign files
/// stay, and so do those of other models in the directory. A new archive gets the version's name for it; if a
/// file of that name is there, a name with the version's number in it. Until the end the disk has both
/// models. A file that replaces none gets the owner, group and mode of the model's archives, as far as they
/// allow reading and writing.
/// @param model  as the user named it; its archive, index or directory. Its directory is that of the state.
/// @param state  locked and read.
/// @param work  one pass, of the bytes that are copied. EINTR if it is stopped before the last file is whole.
/// @return EISDIR (InvalidArgument): the model is named by its only archive, and the version has several.
/// EROFS: it
///   has deltas on top. The errors of the stores. After a failure the model and its state are unchanged,
///   unless the message says that it has the new version.
Result<void> seed_model(const std::filesystem::path& model, const PublishedVersion& version, SyncState& state,
                        Work& work);

}  // namespace stfs::sync
