// Is this directory fit to be mounted on? Said before anything is started, in words.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs {

/// A line of /proc/self/mountinfo: what is mounted at a path.
struct MountEntry {
  std::string device;  // "MAJOR:MINOR", the name of its directory in /sys/class/bdi
  std::string type;
  std::string source;
};

/// The uppermost mount at exactly that absolute path, without touching what is mounted there.
std::optional<MountEntry> mounted_at(const std::filesystem::path& path);

/// The absolute path of the mount point, its links resolved. Fails, saying what to do, where it does not
/// exist, is no directory, holds a dead mount, has a safetensorsfs on it, or holds files that a mount
/// would hide.
Result<std::filesystem::path> check_mount_point(const std::filesystem::path& path, bool may_cover_files);

/// Breaks the connection of a mount of ours, as `umount -f` does: every request and every notification that
/// is under way ends with an error.
/// @param type  ours, as in MountEntry; what else lies there is left alone.
void abort_connection(const std::filesystem::path& mount_point, std::string_view type);

/// Lets the kernel read ahead by 1 MiB instead of 128 KiB, where we are root: 40% more speed on the first
/// read of a tensor (KERNEL-NOTES.md). Call when INIT is over: the kernel resets the setting then. Does
/// nothing where it is not allowed, and never touches the mount, which may be unmounted at any time.
/// @param type      as with abort_connection()
/// @param settings  where each device has a directory; a test has its own
void raise_readahead(const std::filesystem::path& mount_point, std::string_view type,
                     const std::filesystem::path& settings = "/sys/class/bdi");

}  // namespace stfs
