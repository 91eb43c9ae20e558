// Finds the processes that serve mounts of safetensorsfs.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <vector>

#include "core/storage/mount_table.h"

namespace stfs::tools {

/// Returns the process that serves each of the mounts: the one that the mount's guard names. Both processes
/// must belong to the mount's user alone, and must not run a set-user-ID program: another user can start that
/// with any command line. Reads /proc once. Ends after five seconds, and waits at most a second for each
/// other user whose processes do not answer. Call it on the only thread of the process.
/// @return nothing for a mount whose daemon has ended, or whose guard was killed; nothing at all if a user
/// holds
///   up the search.
std::vector<std::optional<pid_t>> find_daemons(std::span<const MountEntry> mounts);
/// Does the same for one mount.
std::optional<pid_t> find_daemon(const MountEntry& mount);

}  // namespace stfs::tools
