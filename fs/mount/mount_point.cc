// Uses statvfs(2), /proc/self/mountinfo and /sys/class/bdi.
#include "fs/mount/mount_point.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/shell_word.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

constexpr int kReadaheadKib = 1024;
constexpr std::string_view kType = "fuse.safetensorsfs";

/// mountinfo writes space, tab, newline and backslash as \OOO.
std::string unescaped(std::string_view field) {
  std::string text;
  for (std::size_t at = 0; at < field.size(); ++at) {
    if (field[at] == '\\' && at + 3 < field.size()) {
      text +=
          static_cast<char>((field[at + 1] - '0') * 64 + (field[at + 2] - '0') * 8 + (field[at + 3] - '0'));
      at += 3;
    } else {
      text += field[at];
    }
  }
  return text;
}

bool is_own(const MountEntry& mount) {
  const std::string user = fmt::format(",user_id={},", ::geteuid());
  return mount.type == kType && ("," + mount.options + ",").find(user) != std::string::npos;
}

/// Unmounts a dead mount of this user's safetensorsfs, which serves nobody. It goes through the descriptor,
/// so an exchange of the path cannot lead it to another mount. @return false if it is another one, or if this
/// user may not: only root can unmount without fusermount3.
bool unmount_dead(const UniqueFd& root) {
  const auto mount = mounted_at(present_path(root));
  if (!mount || !is_own(*mount)) return false;
  return ::umount2(path_of_descriptor(root).c_str(), MNT_DETACH) == 0;
}

std::string unmount_hint(const std::filesystem::path& path) {
  return fmt::format("unmount it with `fusermount3 -u {0}` or `umount {0}`", shell_word(path.native()));
}

}  // namespace

std::vector<MountEntry> mounts() {
  std::ifstream table("/proc/self/mountinfo");
  std::vector<MountEntry> all;
  for (std::string line; std::getline(table, line);) {
    // ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS
    std::istringstream words(line);
    std::string skipped;
    std::string path;
    MountEntry entry;
    words >> entry.id >> skipped >> entry.device >> skipped >> path;
    while (words >> skipped && skipped != "-") {
    }
    words >> entry.type >> entry.source >> entry.options;
    entry.path = unescaped(path);
    entry.source = unescaped(entry.source);
    all.push_back(std::move(entry));
  }
  return all;
}

std::optional<MountEntry> mounted_at(const std::filesystem::path& path) {
  std::optional<MountEntry> found;
  for (MountEntry& entry : mounts()) {
    if (entry.path.native() == path.native()) found = std::move(entry);
  }
  return found;
}

Result<MountPoint> check_mount_point(const std::filesystem::path& path, bool may_cover_files) {
  const std::string name = path.string();
  MountPoint point;
  point.directory = UniqueFd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  int why = point.directory ? 0 : errno;
  // A dead mount may be opened from what the kernel remembers, but statvfs(2) fails.
  struct statvfs store {};
  if (why == 0 && ::fstatvfs(point.directory.get(), &store) != 0 && errno == ENOTCONN) why = ENOTCONN;
  if (why == ENOTCONN) {
    if (point.directory && unmount_dead(point.directory)) {
      log::warning("{}: unmounted a dead mount, whose program was killed", name);
      return check_mount_point(path, may_cover_files);  // it may cover another one
    }
    return fail(ErrorCode::System, ENOTCONN,
                fmt::format("{}: is a dead mount (its daemon has ended): {}", name, unmount_hint(path)));
  }
  if (why == ENOENT) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: the mount point does not exist: create it with `mkdir -p {}`", name,
                            shell_word(name)));
  }
  if (why == ENOTDIR)
    return fail(ErrorCode::InvalidArgument, ENOTDIR, name + ": the mount point is not a directory");
  if (why != 0) return fail_system(why, name, "use as mount point");
  point.path = present_path(point.directory);
  for (const MountEntry& mount : mounts()) {
    if (mount.path.native() != point.path.native()) continue;
    if (mount.type == kType) {
      return fail(ErrorCode::InvalidArgument, EBUSY,
                  fmt::format("{}: already mounted, with {}: {}", name, mount.source, unmount_hint(path)));
    }
    point.earlier_mounts.push_back(mount.id);
  }
  if (may_cover_files) return point;
  std::error_code failed;
  const std::filesystem::directory_iterator entries(path_of_descriptor(point.directory), failed);
  if (failed) return fail_system(failed.value(), name, "use as mount point");
  if (entries != std::filesystem::directory_iterator()) {
    return fail(
        ErrorCode::InvalidArgument, ENOTEMPTY,
        fmt::format("{}: the mount point is not empty, and a mount would hide its files: choose an empty "
                    "directory, or add -o nonempty",
                    name));
  }
  return point;
}

std::filesystem::path present_path(const UniqueFd& directory) {
  std::error_code failed;
  return std::filesystem::read_symlink(path_of_descriptor(directory), failed);
}

std::string path_of_descriptor(const UniqueFd& file) {
  return "/proc/self/fd/" + std::to_string(file.get());
}

void raise_readahead(const std::string& device, const std::filesystem::path& settings) {
  std::ofstream setting(settings / device / "read_ahead_kb");
  setting << kReadaheadKib;
}

}  // namespace stfs
