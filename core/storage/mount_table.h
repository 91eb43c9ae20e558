// The kernel's list of mounts, and the process that serves a mount of safetensorsfs. Nothing here asks a
// mounted file system, which may never answer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

/// The type of our mounts.
inline constexpr std::string_view kMountType = "fuse.safetensorsfs";

/// A line of /proc/self/mountinfo.
struct MountEntry {
  std::string id{};
  std::string device{};  // "MAJOR:MINOR": also the name of the mount's directory in /sys/class/bdi
  std::filesystem::path path{};
  std::string flags{};  // of this mount, as "rw,nosuid,relatime"
  std::string type{};
  std::string source{};
  std::string options{};  // of the file system, as "rw,user_id=0,group_id=0"

  /// The user who has mounted a FUSE file system.
  [[nodiscard]] std::optional<std::uint32_t> user() const;
};

/// Parses a line of /proc/self/mountinfo. Users choose names of mount points: the kernel escapes only space,
/// tab, newline and backslash in them.
/// @return nothing for other lines.
std::optional<MountEntry> mount_of_line(std::string_view line);

/// Returns all mounts of this process's namespace. A later mount covers an earlier mount of the same path.
std::vector<MountEntry> mounts();

/// Returns the topmost mount at exactly this absolute path.
std::optional<MountEntry> mounted_at(const std::filesystem::path& path);

/// The command line of the process that guards a mount (fs/mount/guard.h): its name, the daemon's pid, the
/// mount's `id`, its lasting number, its `device`, what to do with a dead mount, and the mount point.
inline constexpr std::string_view kGuardName = "stfs-guard";
inline constexpr int kGuardArguments = 7;

/// Returns the process that serves each of the mounts: the one that the mount's guard names. The owner of
/// both processes must be the mount's user: another user could start a process with any command line. Reads
/// /proc once.
/// @return nothing for a mount whose daemon has ended, or whose guard was killed.
std::vector<std::optional<pid_t>> find_daemons(std::span<const MountEntry> mounts);
/// Does the same for one mount.
std::optional<pid_t> find_daemon(const MountEntry& mount);

}  // namespace stfs
