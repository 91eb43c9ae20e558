// The names that a switch of files uses in the model's directory (file_switch.h), where other users may make
// entries.
//
// In a directory with the sticky bit another user can take a name before the pull does, and this process may
// be unable to remove or replace that entry: a directory, a mount, a file of that user. So a temporary name
// is random, and an entry counts as a file of the switch only if is_made() is true.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "tools/sync/sync_place.h"

namespace stfs::sync {

/// Returns true if the name leads to a file that a switch may have made: a regular file whose owner is the
/// switch's maker, this process's user, root, or the directory's owner. In a directory that only its owner
/// may write, files of all owners count: new files get the owner of the model.
/// @param maker  the user whose process has noted the switch.
Result<bool> is_made(Storage& storage, const SyncPlace& place, const std::string& name, std::uint32_t maker);
/// Removes the file if is_made() is true. Any other entry stays.
Result<void> remove_made(Storage& storage, const SyncPlace& place, const std::string& name,
                         std::uint32_t maker);

/// Returns true if no entry has the name.
Result<bool> is_free_name(Storage& storage, const SyncPlace& place, const std::string& name);

/// Returns the kind and the owner of an entry that no rename of this process can replace ("a directory of
/// user 1000"); nothing if the name is free, or if a rename replaces the entry.
Result<std::optional<std::string>> find_obstacle(Storage& storage, const SyncPlace& place,
                                                 const std::string& name);
/// EEXIST: there is an obstacle. The message names it, and says that the model is unchanged.
Result<void> check_final_name(Storage& storage, const SyncPlace& place, const std::string& name);

}  // namespace stfs::sync
