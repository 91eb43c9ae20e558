// Refuses a mount that would hide files of the source. Every access of the mount's program to such a file
// would be a request to the program itself, so the program would wait for itself.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "fs/mount/mount_point.h"
#include "fs/mount/source.h"

namespace stfs {

/// EINVAL, with the file's path and advice, if one of the paths leads through the mount point: below it, by
/// links, or by another mount of the same directory. A bind mount is such a mount, because the kernel may
/// show the new mount there too (shared subtrees, mount_namespaces(7)). If a path does not exist, its
/// existing part is checked. Call before the mount.
Result<void> check_not_hidden(std::span<const std::filesystem::path> paths, const MountPoint& mount_point);

/// The files that the mount of a source uses by their paths.
std::vector<std::filesystem::path> files_of(const Source& source);

}  // namespace stfs
