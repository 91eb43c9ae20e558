// Gives a model the files of a full version: on a host that has no files of the model yet, or whose model has
// other tensors.
#pragma once

#include <filesystem>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/sync/published_version.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {

/// Replaces the model, if there is one, by the version. All files of the version are copied beside the model;
/// then one rename makes them the model (file_switch.h); then the archives of the model before are removed.
/// Foreign files and files of other models in the directory stay. A new archive gets the version's name for
/// it. If a file of that name exists, the new name has the version's number in it. Until the end the disk has
/// both models. A file that replaces no other one gets the owner, group and mode of the model's archives, as
/// far as they allow reading and writing. If there is no model, a user who may not read the version's
/// archives and index, or the file that is copied, may not read the copy.
/// @param model  the name that the user gave: the model's archive, index or directory. Its directory is the
///               state's directory.
/// @param state  locked and read.
/// @param work  one pass, of the bytes that are copied. EINTR: the work was stopped before the last file was
///              whole.
/// @return EISDIR (InvalidArgument): the user named the model's only archive, and the version has several.
///   EROFS: the model has deltas on top. The errors of the stores. After a failure the model and its state
///   are unchanged, unless the message says that the model has the new version.
Result<void> seed_model(const std::filesystem::path& model, const PublishedVersion& version, SyncState& state,
                        Work& work);

}  // namespace stfs::sync
