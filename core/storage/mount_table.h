// The kernel's list of mounts. Nothing here asks a mounted file system, which may never answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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

}  // namespace stfs
