// Checks before the start that a directory can be a mount point, and says in words why it cannot. Also finds
// and configures mounts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// A line of /proc/self/mountinfo.
struct MountEntry {
  std::string id;
  std::string device;  // "MAJOR:MINOR": also the name of the mount's directory in /sys/class/bdi
  std::filesystem::path path;
  std::string type;
  std::string source;
  std::string options;  // of the file system, as "rw,user_id=0,group_id=0"
};

/// All mounts of this process's namespace. A later one covers an earlier one of the same path. Does not
/// access the mounted file systems.
std::vector<MountEntry> mounts();

/// The topmost mount at exactly this absolute path.
std::optional<MountEntry> mounted_at(const std::filesystem::path& path);

/// A directory that may be mounted on. It is held open: its path may lead elsewhere a moment later, if
/// another user may write a directory above it.
struct MountPoint {
  UniqueFd directory;                       // O_PATH
  std::filesystem::path path;               // absolute, with links resolved
  std::vector<std::string> earlier_mounts;  // ids of the mounts that lay on it
};

/// Fails if the path does not exist, is not a directory, holds a dead mount, has a safetensorsfs mounted on
/// it, or holds files that a mount would hide. The error's message says what to do. For root, a dead mount of
/// root's own safetensorsfs is no failure: it is unmounted.
Result<MountPoint> check_mount_point(const std::filesystem::path& path, bool may_cover_files);

/// The path that leads to the open directory now.
std::filesystem::path present_path(const UniqueFd& directory);

/// A name for the open file that calls with a path take: no other user can have it lead elsewhere.
std::string path_of_descriptor(const UniqueFd& file);

/// Makes the kernel read ahead by 1 MiB instead of 128 KiB. This makes the first read of a tensor 40% faster
/// (fs/KERNEL.md). It needs root, and does nothing without it. Call it after INIT, because INIT resets the
/// setting. It never accesses the mount, which may be unmounted at any time.
/// @param device    as in MountEntry
/// @param settings  the folder with a directory for each device; a test has its own
void raise_readahead(const std::string& device, const std::filesystem::path& settings = "/sys/class/bdi");

}  // namespace stfs
