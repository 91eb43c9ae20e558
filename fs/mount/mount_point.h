// Checks before the start that a directory can be a mount point, and explains a refusal. Also configures
// mounts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/mount_table.h"

namespace stfs {

/// A directory that may be mounted on. The directory is held open, because its path may lead elsewhere a
/// moment later if another user may write a parent directory.
struct MountPoint {
  UniqueFd directory;                       // O_PATH
  std::filesystem::path path;               // absolute, with links resolved
  std::vector<std::string> earlier_mounts;  // ids of the mounts that were on it
};

/// Fails if the path does not exist, is not a directory, has a dead mount, has a safetensorsfs mounted on it,
/// or contains files that a mount would hide. The error's message gives advice. For root, a dead mount of
/// root's own safetensorsfs is no failure: the dead mount is unmounted.
Result<MountPoint> check_mount_point(const std::filesystem::path& path, bool may_cover_files);

/// The present path of the open directory.
std::filesystem::path present_path(const UniqueFd& directory);

/// Returns a name of the open file for system calls that take a path. No other user can make this name lead
/// elsewhere.
std::string path_of_descriptor(const UniqueFd& file);

/// Makes the kernel read ahead by 1 MiB instead of 128 KiB. This makes the first read of a tensor 40% faster
/// (fs/KERNEL.md). Needs root, and does nothing for other users. Call after INIT, because INIT resets the
/// setting. Never accesses the mount, which may be unmounted at any time.
/// @param device    as in MountEntry
/// @param settings  the folder with a directory for each device. A test has its own folder.
void raise_readahead(const std::string& device, const std::filesystem::path& settings = "/sys/class/bdi");

}  // namespace stfs
