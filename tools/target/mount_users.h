// Finds the processes that keep a mount busy.
#pragma once

#include <sys/types.h>

#include <vector>

#include "core/storage/mount_table.h"

namespace stfs::tools {

/// Returns the processes that have a file of the mount open or mapped, run it, or have their working or root
/// directory in the mount. Does not ask the mount, and ends after two seconds with the processes that it has
/// found. Only root sees the files of other users' processes.
std::vector<pid_t> users_of(const MountEntry& mount);

}  // namespace stfs::tools
