#include "core/storage/foreign_mount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>

#include "core/base/absolute_path.h"
#include "core/storage/group_members.h"
#include "core/storage/mount_record.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

/// Returns nothing on kernels before 5.8. Asks for no field, so that the kernel does not ask the file system.
std::optional<bool> is_mount_root(int descriptor) {
  struct statx found {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  if (::statx(descriptor, "", kFlags, 0, &found) != 0 ||
      (found.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) == 0)
    return std::nullopt;
  return (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

bool is_fuse(const MountRecord& mount) {
  return mount.type == "fuse" || mount.type == "fuseblk" || mount.type.starts_with("fuse.") ||
         mount.type.starts_with("fuseblk.");
}

bool is_foreign(const MountRecord& mount) {
  const bool is_ours = mount.user && (*mount.user == 0 || is_same_user(*mount.user, ::geteuid()));
  return is_fuse(mount) && !is_ours;
}

}  // namespace

bool is_in_foreign_mount(int descriptor) {
  const auto mount = mount_of(descriptor);
  return mount && is_foreign(*mount);
}

Result<void> check_not_foreign(int descriptor, const std::string& path, UnknownMount unknown) {
  const auto is_root = is_mount_root(descriptor);
  if (is_root && !*is_root) return {};
  const auto mount = mount_of(descriptor);
  if (!mount && (!is_root || unknown == UnknownMount::Entered)) return {};
  if (!mount) {
    return fail(ErrorCode::System, EXDEV,
                path + ": another file system is mounted there, and /proc does not tell which: not entered");
  }
  if (!is_foreign(*mount)) return {};
  return fail(ErrorCode::System, EXDEV,
              fmt::format("{}: another file system is mounted there ({}){}: not entered, because its program "
                          "may never answer",
                          path, mount->type, mount->user ? fmt::format(" by user {}", *mount->user) : ""));
}

Result<UniqueFd> open_entry(int directory, const std::string& name, int flags, const std::string& path) {
  struct open_how how {};
  how.flags = static_cast<std::uint64_t>(flags | O_NOFOLLOW | O_CLOEXEC);
  how.resolve = RESOLVE_NO_XDEV;
  UniqueFd opened(static_cast<int>(::syscall(SYS_openat2, directory, name.c_str(), &how, sizeof how)));
  if (opened) return opened;
  // A mount; or the kernel is older than 5.6; or a filter of system calls does not know this one.
  if (errno != EXDEV && errno != ENOSYS && errno != EPERM) return fail_system(errno, path, "open");
  UniqueFd at(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!at) return fail_system(errno, path, "open");
  RETURN_IF_ERROR(check_not_foreign(at.get(), path));
  if ((flags & O_PATH) != 0) {
    struct stat st {};
    const bool fits = (flags & O_DIRECTORY) == 0 || (::fstat(at.get(), &st) == 0 && S_ISDIR(st.st_mode));
    return fits ? Result<UniqueFd>(std::move(at)) : Result<UniqueFd>(fail_system(ENOTDIR, path, "open"));
  }
  // This link leads to the file that was checked, even if the name leads elsewhere now. If it is a link:
  // ELOOP.
  opened = UniqueFd(::open(fmt::format("/proc/self/fd/{}", at.get()).c_str(), flags | O_CLOEXEC));
  return opened ? Result<UniqueFd>(std::move(opened)) : Result<UniqueFd>(fail_system(errno, path, "open"));
}

Result<UniqueFd> open_entry(const std::filesystem::path& path, int flags) {
  const auto directory = follow_to_directory(directory_of(path));
  if (!directory && directory.error().errno_value == EXDEV) return tl::unexpected(directory.error());
  if (!directory) return fail_system(directory.error().errno_value, path.string(), "open");
  return open_entry(directory->get(), path.filename(), flags, path.string());
}

}  // namespace stfs
