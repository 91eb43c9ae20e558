#include "fs/read/source_entry.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/storage/trusted_links.h"

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

bool is_shown(const struct stat& status) {
  return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
}

/// Opens what is behind a link.
Result<SourceEntry> follow(int directory, const std::string& name) {
  auto found = follow_trusted_links(directory, name, OtherMounts::Refused);
  if (!found) return pass_on(std::move(found));
  if (!is_shown(found->status)) return no_such_entry();
  return SourceEntry{
      .status = found->status, .permissions = {}, .is_link = true, .file = found->open(kForReading)};
}

}  // namespace

UniqueFd open_directory_path(const std::filesystem::path& path) {
  auto found = follow_trusted_links(AT_FDCWD, path);
  return found && S_ISDIR(found->status.st_mode) ? std::move(found->fd) : UniqueFd();
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
  entry->status = opened;
  entry->permissions = permissions_of(entry->status, entry->file.get());
  return entry;
}

}  // namespace stfs
