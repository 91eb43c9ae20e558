// Uses stat(2), /proc/self/mountinfo and /sys/class/bdi.
#include "fs/mount/mount_point.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace stfs {
namespace {

constexpr int kReadaheadKib = 1024;

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

std::string unmount_hint(const std::filesystem::path& path) {
  return fmt::format("unmount it with `fusermount3 -u '{0}'` or `umount '{0}'`", path.string());
}

/// Mounts fusectl without a place in the tree of files. In a container it often is not mounted, and root may
/// do this.
UniqueFd fusectl_of_our_own() {
#ifdef SYS_fsopen
  constexpr unsigned kCloseOnExec = 1;  // FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
  constexpr unsigned kCreate = 6;       // FSCONFIG_CMD_CREATE
  const UniqueFd context(static_cast<int>(::syscall(SYS_fsopen, "fusectl", kCloseOnExec)));
  if (context && ::syscall(SYS_fsconfig, context.get(), kCreate, nullptr, nullptr, 0) == 0)
    return UniqueFd(static_cast<int>(::syscall(SYS_fsmount, context.get(), kCloseOnExec, 0)));
#endif
  return {};
}

}  // namespace

std::optional<MountEntry> mounted_at(const std::filesystem::path& path) {
  std::ifstream table("/proc/self/mountinfo");
  std::optional<MountEntry> found;
  for (std::string line; std::getline(table, line);) {
    // ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS
    std::istringstream words(line);
    std::string skipped;
    MountEntry entry;
    std::string at;
    words >> skipped >> skipped >> entry.device >> skipped >> at;
    if (unescaped(at) != path.string()) continue;
    while (words >> skipped && skipped != "-") {
    }
    words >> entry.type >> entry.source;
    entry.source = unescaped(entry.source);
    found = entry;  // a later mount covers an earlier one
  }
  return found;
}

Result<std::filesystem::path> check_mount_point(const std::filesystem::path& path, bool may_cover_files) {
  const std::string name = path.string();
  struct stat st {};
  struct statvfs store {};
  // On a dead mount stat(2) may still succeed from the kernel's caches, but statvfs(2) fails.
  if (::stat(path.c_str(), &st) != 0 || (::statvfs(path.c_str(), &store) != 0 && errno == ENOTCONN)) {
    const int why = errno;
    if (why == ENOTCONN) {
      return fail(ErrorCode::System, ENOTCONN,
                  fmt::format("{}: is a dead mount (its daemon has ended): {}", name, unmount_hint(path)));
    }
    if (why == ENOENT) {
      return fail(
          ErrorCode::NotFound, ENOENT,
          fmt::format("{}: the mount point does not exist: create it with `mkdir -p '{}'`", name, name));
    }
    return fail_system(why, name, "use as mount point");
  }
  if (!S_ISDIR(st.st_mode)) {
    return fail(ErrorCode::InvalidArgument, ENOTDIR, name + ": the mount point is not a directory");
  }
  std::error_code failed;
  std::filesystem::path absolute = std::filesystem::canonical(path, failed);
  if (failed) return fail_system(failed.value(), name, "resolve");
  if (const auto mount = mounted_at(absolute); mount && mount->type == "fuse.safetensorsfs") {
    return fail(ErrorCode::InvalidArgument, EBUSY,
                fmt::format("{}: already mounted, with {}: {}", name, mount->source, unmount_hint(path)));
  }
  if (may_cover_files) return absolute;
  const std::filesystem::directory_iterator entries(absolute, failed);
  if (failed) return fail_system(failed.value(), name, "use as mount point");
  if (entries != std::filesystem::directory_iterator()) {
    return fail(
        ErrorCode::InvalidArgument, ENOTEMPTY,
        fmt::format("{}: the mount point is not empty, and a mount would hide its files: choose an empty "
                    "directory, or add -o nonempty",
                    name));
  }
  return absolute;
}

UniqueFd open_abort_file(const MountEntry& mount) {
  const std::string path = mount.device.substr(mount.device.find(':') + 1) + "/abort";
  UniqueFd file(::open(("/sys/fs/fuse/connections/" + path).c_str(), O_WRONLY | O_CLOEXEC));
  if (file) return file;
  const UniqueFd fusectl = fusectl_of_our_own();
  return UniqueFd(fusectl ? ::openat(fusectl.get(), path.c_str(), O_WRONLY | O_CLOEXEC) : -1);
}

void abort_connection(const UniqueFd& abort_file) {
  [[maybe_unused]] const ssize_t put = ::write(abort_file.get(), "1", 1);
}

void abort_connection(const std::filesystem::path& mount_point, std::string_view type) {
  const auto mount = mounted_at(mount_point);
  if (!mount || mount->type != type) return;
  // The mount's owner may write to this file. umount2(2) needs root, and works also if fusectl is not
  // mounted.
  if (const UniqueFd file = open_abort_file(*mount)) abort_connection(file);
  ::umount2(mount_point.c_str(), MNT_FORCE | MNT_DETACH);
}

void raise_readahead(const std::filesystem::path& mount_point, std::string_view type,
                     const std::filesystem::path& settings) {
  const auto mount = mounted_at(mount_point);
  if (!mount || mount->type != type) return;
  std::ofstream setting(settings / mount->device / "read_ahead_kb");
  setting << kReadaheadKib;
}

}  // namespace stfs
