// Checks before the start that a directory can be a mount point, and says in words why it cannot. Also finds
// and configures mounts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// A line of /proc/self/mountinfo: what is mounted at a path.
struct MountEntry {
  std::string device;  // "MAJOR:MINOR": also the name of the mount's directory in /sys/class/bdi
  std::string type;
  std::string source;
};

/// The topmost mount at exactly this absolute path. Does not access the mounted file system.
std::optional<MountEntry> mounted_at(const std::filesystem::path& path);

/// Returns the absolute path of the mount point, with links resolved. Fails if the path does not exist, is
/// not a directory, holds a dead mount, has a safetensorsfs mounted on it, or holds files that a mount would
/// hide. The error's message says what to do.
Result<std::filesystem::path> check_mount_point(const std::filesystem::path& path, bool may_cover_files);

/// Opens the file that ends a mount's connection (abort_connection()). Only root and the user who mounted may
/// do so, and the latter only where fusectl is mounted. @return a closed one if that fails.
UniqueFd open_abort_file(const MountEntry& mount);

/// Ends the connection whose file this is, and no other: does nothing if that one has ended.
void abort_connection(const UniqueFd& abort_file);

/// Aborts the connection of our mount, as `umount -f` does: every running request and notification ends with
/// an error.
/// @param type  our type, as in MountEntry. A mount of another type is left alone.
void abort_connection(const std::filesystem::path& mount_point, std::string_view type);

/// Makes the kernel read ahead by 1 MiB instead of 128 KiB. This makes the first read of a tensor 40% faster
/// (KERNEL-NOTES.md). It needs root, and does nothing without it. Call it after INIT, because INIT resets the
/// setting. It never accesses the mount, which may be unmounted at any time.
/// @param type      as in abort_connection()
/// @param settings  the folder with a directory for each device; a test has its own
void raise_readahead(const std::filesystem::path& mount_point, std::string_view type,
                     const std::filesystem::path& settings = "/sys/class/bdi");

}  // namespace stfs
