#include "fs/read/source_entry.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/storage/group_members.h"

namespace stfs {
namespace {

tl::unexpected<Error> no_such_entry() {
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the model");
}

/// Whether the entry is no directory on which something is mounted. Asks no file system that is mounted
/// there: it may be our own.
bool is_bare(int directory, const std::string& name) {
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  struct statx found {};
  if (::statx(directory, name.c_str(), kFlags, 0, &found) != 0) return false;
  return !S_ISDIR(found.stx_mode) || (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0;
}

constexpr int kForReading = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

/// Opens a path by which a link leads on, on the same file system.
int open_behind(int directory, const std::string& path, int flags) {
  struct open_how how {};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how));
}

bool is_shown(const struct stat& status) {
  return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
}

bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// Opens what is behind a link. The link is opened first, so that its owner and its target belong together.
Result<SourceEntry> follow(int directory, const std::string& name) {
  const UniqueFd link(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat of_link {};
  if (!link || ::fstat(link.get(), &of_link) != 0) return fail_system(errno, name, "open the link");
  std::string path(PATH_MAX, '\0');
  const ssize_t length = ::readlinkat(link.get(), "", path.data(), path.size());
  if (length < 0) return fail_system(errno, name, "read the link");
  path.resize(static_cast<std::size_t>(length));
  const UniqueFd target(open_behind(directory, path, O_PATH));
  if (!target) return fail_system(errno, name, "follow the link");
  SourceEntry entry{.status = {}, .permissions = {}, .is_link = true, .file = {}};
  if (::fstat(target.get(), &entry.status) != 0) return fail_system(errno, name, "stat");
  if (!is_shown(entry.status)) return no_such_entry();
  const bool is_meant = of_link.st_uid == 0 || is_same_user(of_link.st_uid, ::geteuid()) ||
                        is_same_user(of_link.st_uid, entry.status.st_uid);
  if (!is_meant) {
    return fail(ErrorCode::System, EACCES,
                name + ": another user's link to a file that this user does not own is not followed");
  }
  entry.file = UniqueFd(open_behind(directory, path, kForReading));
  return entry;
}

}  // namespace

UniqueFd open_directory_path(const std::filesystem::path& path) {
  return UniqueFd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

bool is_entry_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

Result<SourceEntry> open_source_entry(int directory, const std::string& name) {
  struct stat named {};
  if (::fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return no_such_entry();
    return fail_system(errno, name, "stat");
  }
  Result<SourceEntry> entry = SourceEntry{.status = named, .permissions = {}, .is_link = false, .file = {}};
  if (S_ISLNK(named.st_mode)) {
    entry = follow(directory, name);
    if (!entry) return entry;
  } else {
    if (!is_shown(named) || !is_bare(directory, name)) return no_such_entry();
    entry->file = UniqueFd(::openat(directory, name.c_str(), kForReading | O_NOFOLLOW));
    if (!entry->file && errno == ENOENT) return no_such_entry();
  }
  entry->permissions = {
      .mode = entry->status.st_mode & S_IRWXU, .uid = entry->status.st_uid, .gid = entry->status.st_gid};
  if (!entry->file) return entry;  // an access control list can't be read: only the owner's bits are sure
  struct stat opened {};
  if (::fstat(entry->file.get(), &opened) != 0) return fail_system(errno, name, "stat");
  if (!is_shown(opened)) return no_such_entry();
  // Another file may have got the name meanwhile.
  if (entry->is_link && !is_same_file(opened, entry->status))
    return fail(ErrorCode::ArchiveChanged, ESTALE, name + ": was replaced while it was looked up");
  entry->status = opened;
  entry->permissions = permissions_of(entry->status, entry->file.get());
  return entry;
}

}  // namespace stfs
