#include "fs/read/source_entry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

tl::unexpected<Error> no_such_entry() {
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the model");
}

/// True if the entry is no directory on which a file system is mounted. Does not ask a mounted file system,
/// because this may be our own mount.
bool is_bare(int entry) {
  struct statx found {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  if (::statx(entry, "", kFlags, 0, &found) != 0) return false;
  return !S_ISDIR(found.stx_mode) || (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0;
}

/// True if a file keeps one time of birth. On overlayfs a file gets another time of birth when it is copied
/// up, and a server of another host may report the time only sometimes.
bool keeps_births(int file, dev_t device) {
  struct Store {
    dev_t device = 0;
    bool keeps = false;
  };
  thread_local Store last;
  if (last.device == device) return last.keeps;
  constexpr unsigned kXfs = 0x58465342;
  struct statfs store {};
  if (::fstatfs(file, &store) != 0) return false;
  const auto type = static_cast<unsigned>(store.f_type);
  last = {device,
          type == EXT4_SUPER_MAGIC || type == kXfs || type == BTRFS_SUPER_MAGIC || type == TMPFS_MAGIC};
  return last.keeps;
}

constexpr int kForReading = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

bool is_shown(const struct stat& status) {
  return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
}

/// Opens the file that a link leads to.
Result<SourceEntry> follow(int directory, const std::string& name) {
  auto found = follow_trusted_links(directory, name, OtherMounts::Refused);
  RETURN_IF_ERROR(found);
  if (!is_shown(found->status)) return no_such_entry();
  SourceEntry entry{.status = found->status, .permissions = {}, .is_link = true};
  entry.file = found->open(kForReading);
  if (!entry.file) entry.identity = identity_of(found->fd.get(), found->status);
  return entry;
}

}  // namespace

EntryIdentity identity_of(int file, const struct stat& status) {
  EntryIdentity identity{.device = status.st_dev, .inode = status.st_ino};
  struct statx found {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  if (!keeps_births(file, status.st_dev) || ::statx(file, "", kFlags, STATX_BTIME, &found) != 0)
    return identity;
  if ((found.stx_mask & STATX_BTIME) == 0) return identity;
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  identity.birth_ns = found.stx_btime.tv_sec * kNsPerSecond + found.stx_btime.tv_nsec;
  return identity;
}

UniqueFd open_directory_path(const std::filesystem::path& path) {
  if (is_url(path)) return {};  // no directory of this host, even if one has a name like that
  // Behind the slash, the person who has named it may have meant another user's mount.
  auto found = follow_trusted_links(AT_FDCWD, path / "");
  return found && S_ISDIR(found->status.st_mode) ? std::move(found->fd) : UniqueFd();
}

bool is_entry_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

Result<SourceEntry> open_source_entry(int directory, const std::string& name) {
  const auto at = open_entry(directory, name, O_PATH, name);
  if (!at) {
    const int why = at.error().errno_value;
    if (why == ENOENT || why == ENOTDIR) return no_such_entry();
    if (why == EXDEV) return fail(ErrorCode::System, EACCES, at.error().message);
    return tl::unexpected(at.error());
  }
  if (!is_bare(at->get())) return no_such_entry();
  struct stat named {};
  if (::fstat(at->get(), &named) != 0) return fail_system(errno, name, "stat");
  Result<SourceEntry> entry = SourceEntry{.status = named, .permissions = {}};
  if (S_ISLNK(named.st_mode)) {
    entry = follow(directory, name);
    RETURN_IF_ERROR(entry);
  } else {
    if (!is_shown(named)) return no_such_entry();
    entry->file = UniqueFd(::open(fmt::format("/proc/self/fd/{}", at->get()).c_str(), kForReading));
    if (!entry->file && errno == ENOENT) return no_such_entry();
    if (!entry->file) entry->identity = identity_of(at->get(), named);
  }
  entry->permissions = {
      .mode = entry->status.st_mode & S_IRWXU, .uid = entry->status.st_uid, .gid = entry->status.st_gid};
  if (!entry->file) return entry;  // an access control list can't be read: only the owner's bits are sure
  struct stat opened {};
  if (::fstat(entry->file.get(), &opened) != 0) return fail_system(errno, name, "stat");
  if (!is_shown(opened)) return no_such_entry();
  entry->status = opened;
  entry->identity = identity_of(entry->file.get(), opened);
  entry->permissions = permissions_of(entry->status, entry->file.get());
  return entry;
}

}  // namespace stfs
