#include "core/storage/open_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include "core/base/absolute_path.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/mount_record.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

tl::unexpected<Error> no_directory(const std::filesystem::path& path) {
  return fail(ErrorCode::System, ENOTDIR,
              path.string() + ": is a link or a file: expected a directory of its own");
}

/// Asks only the kernel's tables: the mount's daemon may not answer.
tl::unexpected<Error> is_a_mount(int above, const std::filesystem::path& path) {
  const UniqueFd root(::openat(above, path.filename().c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  const auto mount = mount_of(root.get());
  const bool is_of_user = mount && mount->user;
  return fail(ErrorCode::System, EACCES,
              fmt::format("{}: another file system is mounted there{}{}: expected a directory of its own: "
                          "unmount it with `umount -l`, as root{}",
                          path.string(), mount ? fmt::format(" ({})", mount->type) : "",
                          is_of_user ? fmt::format(" by user {}", *mount->user) : "",
                          !is_of_user || *mount->user == 0
                              ? ""
                              : fmt::format(", or with `fusermount3 -u -z`, as user {}", *mount->user)));
}

/// Refuses a link and a mount. Another user's mount may block each request, and may report any owner and
/// mode.
Result<UniqueFd> open_own(const Storage& storage, const std::filesystem::path& path) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const auto directory = directory_of(storage.reached(path));
  const auto above = follow_to_directory(directory);
  if (!above && above.error().errno_value == EXDEV) return tl::unexpected(above.error());
  if (!above) return fail_system(above.error().errno_value, path.string(), "open");
  struct open_how how {};
  how.flags = kFlags;
  how.resolve = RESOLVE_NO_XDEV;
  const std::string name = path.filename();
  UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, above->get(), name.c_str(), &how, sizeof how)));
  if (!fd && errno == EXDEV) return is_a_mount(above->get(), path);
  // Old kernels and filters of system calls refuse the call.
  if (!fd && (errno == ENOSYS || errno == EPERM || errno == EINVAL))
    fd = UniqueFd(::openat(above->get(), name.c_str(), kFlags));
  if (fd) return fd;
  if (errno == ENOTDIR || errno == ELOOP) return no_directory(path);
  return fail_system(errno, path.string(), "open");
}

FileStatus directory_status(const struct stat& st) {
  return {.identity = {.device = st.st_dev, .inode = st.st_ino, .size_bytes = 0, .mtime_ns = 0},
          .birth_ns = 0,
          .mode = st.st_mode,
          .uid = st.st_uid,
          .gid = st.st_gid,
          .links = static_cast<std::uint32_t>(st.st_nlink)};
}

bool is_empty(int directory) {
  UniqueFd own(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(own ? ::fdopendir(own.get()) : nullptr, ::closedir);
  if (!entries) return false;
  static_cast<void>(own.release());
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return false;
  }
  return true;
}

}  // namespace

bool is_newly_made(int directory) {
  struct stat st {};
  return ::fstat(directory, &st) == 0 && is_same_user(st.st_uid, ::geteuid()) && is_empty(directory);
}

Error OpenDirectory::with_shown_paths(Error error, const std::filesystem::path& shown) const {
  const std::string& hidden = path.native();
  std::string& message = error.message;
  for (std::size_t at = 0; fd && (at = message.find(hidden, at)) != std::string::npos;) {
    const std::size_t end = at + hidden.size();
    const bool is_other = end < message.size() && message[end] >= '0' && message[end] <= '9';
    if (!is_other) message.replace(at, hidden.size(), shown.native());
    at = is_other ? end : at + shown.native().size();
  }
  return error;
}

Result<OpenDirectory> open_directory(Storage& storage, const std::filesystem::path& path, LastLink link) {
  OpenDirectory opened;
  if (!storage.is_system()) {
    auto there = storage.status(path);
    RETURN_IF_ERROR(there);
    if (!S_ISDIR(there->mode)) return no_directory(path);
    opened.path = path;
    opened.status = *there;
    return opened;
  }
  if (link == LastLink::Refused) {
    auto own = open_own(storage, path);
    RETURN_IF_ERROR(own);
    opened.fd = std::move(*own);
  } else {
    auto followed = follow_to_directory(storage.reached(path));
    const int why = followed ? 0 : followed.error().errno_value;
    if (why == ENOTDIR || why == ELOOP) return no_directory(path);
    if (why == EXDEV) return tl::unexpected(std::move(followed).error());
    if (why != 0) return fail_system(why, path.string(), "open");
    opened.fd = std::move(*followed);
  }
  struct stat st {};
  if (::fstat(opened.fd.get(), &st) != 0) return fail_system(errno, path.string(), "stat");
  opened.path = fmt::format("/proc/self/fd/{}", opened.fd.get());
  opened.status = directory_status(st);
  return opened;
}

Result<OpenDirectory> open_folder(Storage& storage, const std::filesystem::path& path) {
  if (!storage.is_system()) return open_directory(storage, path, LastLink::Followed);
  auto found = follow_all_links(path / "");
  RETURN_IF_ERROR(found);
  OpenDirectory folder;
  folder.fd = std::move(found->fd);
  folder.path = fmt::format("/proc/self/fd/{}", folder.fd.get());
  folder.status = directory_status(found->status);
  return folder;
}

bool has_entry(Storage& storage, const OpenDirectory& directory, const std::filesystem::path& name,
               const File& file) {
  const auto own = file.status();
  auto path = directory.file(name);
  UniqueFd named;
  if (directory.fd) {
    auto entry = open_entry(directory.fd.get(), name, O_PATH, name);
    if (!entry) return false;
    named = std::move(*entry);
    path = fmt::format("/proc/self/fd/{}", named.get());
  }
  const auto there = storage.status(path);
  return own && there && own->identity.same_file(there->identity);
}

Result<std::shared_ptr<Storage>> storage_beside(Storage& storage, const std::filesystem::path& path,
                                                const File* file) {
  if (!storage.is_system() || ::access("/proc/self/fd", F_OK) != 0)
    return std::shared_ptr<Storage>(std::shared_ptr<void>(), &storage);
  auto folder = open_folder(storage, path.parent_path());
  RETURN_IF_ERROR(folder);
  if (file != nullptr && !has_entry(storage, *folder, path.filename(), *file)) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path.string() + ": the archive, or its directory, was exchanged for another one");
  }
  return storage_in(path.parent_path(), std::move(*folder));
}

}  // namespace stfs
