// Uses statvfs(2) and /sys/class/bdi.
#include "fs/mount/mount_point.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/base/shell_word.h"
#include "core/storage/trusted_links.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

constexpr int kReadaheadKib = 1024;

bool is_own(const MountEntry& mount) {
  return mount.type == kMountType && mount.user() == ::geteuid();
}

/// Unmounts a dead mount of this user's safetensorsfs, which serves no program. Uses the descriptor, so an
/// exchange of the path cannot lead to another mount. @return false if it is another mount, or if this user
/// may not unmount: only root can unmount without fusermount3.
bool unmount_dead(const UniqueFd& root) {
  const auto mount = mounted_at(present_path(root));
  if (!mount || !is_own(*mount)) return false;
  return ::umount2(path_of_descriptor(root).c_str(), MNT_DETACH) == 0;
}

std::string unmount_hint(const std::filesystem::path& path) {
  return fmt::format("unmount it with `fusermount3 -u {0}` or `umount {0}`", shell_word(path.native()));
}

}  // namespace

Result<MountPoint> check_mount_point(const std::filesystem::path& path, bool may_cover_files) {
  const std::string name = path.string();
  MountPoint point;
  const auto named = open_what_is_named(path);
  if (!named && named.error().errno_value == EXDEV) return tl::unexpected(named.error());
  if (named)
    point.directory = UniqueFd(::open(path_of_descriptor(*named).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  int why = point.directory ? 0 : named ? errno : named.error().errno_value;
  // The kernel may open a dead mount from its caches, but statvfs(2) fails.
  struct statvfs store {};
  if (why == 0 && ::fstatvfs(point.directory.get(), &store) != 0 && errno == ENOTCONN) why = ENOTCONN;
  if (why == ENOTCONN) {
    if (point.directory && unmount_dead(point.directory)) {
      log::warning("{}: unmounted a dead mount, whose program was killed", name);
      return check_mount_point(path, may_cover_files);  // the dead mount may have covered another one
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
    if (mount.type == kMountType) {
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
