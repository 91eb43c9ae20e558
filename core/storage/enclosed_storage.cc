#include "core/storage/enclosed_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/storage/directory_writers.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/system_file.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

bool is_link(int directory, const char* name) {
  struct stat st {};
  const auto named = open_entry(directory, name, O_PATH, name);
  return named && ::fstat(named->get(), &st) == 0 && S_ISLNK(st.st_mode);
}

UniqueFd refuse_link() {
  errno = ELOOP;
  return {};
}

/// Opens one component after the other, each without following a link.
UniqueFd open_by_component(int directory, const std::filesystem::path& path, int flags) {
  UniqueFd at;
  for (auto name = path.begin(); name != path.end(); ++name) {
    const int from = at ? at.get() : directory;
    if (*name == ".." || name->is_absolute()) return refuse_link();
    const bool is_last = std::next(name) == path.end();
    auto opened = open_entry(from, *name, is_last ? flags : O_PATH | O_DIRECTORY, *name);
    const int why = opened ? 0 : opened.error().errno_value;
    UniqueFd next = opened ? std::move(*opened) : UniqueFd();
    // With O_DIRECTORY a link is "not a directory", and with O_PATH it is opened itself.
    const bool may_be_link = next ? (flags & O_PATH) != 0 : why == ENOTDIR || why == ELOOP;
    if (may_be_link && is_link(from, name->c_str())) return refuse_link();
    errno = why;
    if (!next) return next;
    at = std::move(next);
  }
  return at;
}

/// The path below one of the directory's names.
std::optional<std::filesystem::path> path_below(const std::filesystem::path& directory,
                                                const std::filesystem::path& path) {
  auto at = path.begin();
  for (const std::filesystem::path& name : directory) {
    if (name.empty()) continue;  // behind a final slash
    if (at == path.end() || *at != name) return std::nullopt;
    ++at;
  }
  std::filesystem::path rest;
  for (; at != path.end(); ++at) {
    if (!at->empty()) rest /= *at;
  }
  return rest.empty() ? std::filesystem::path(".") : rest;
}

tl::unexpected<Error> read_only(const std::filesystem::path& path) {
  return fail_system(EROFS, path.string(), "change what is only read");
}

}  // namespace

UniqueFd open_beneath(int directory, const std::filesystem::path& path, int flags, bool uses_openat2) {
  if (uses_openat2) {
    struct open_how how {};
    how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
    UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how)));
    if (fd) return fd;
    // Old kernels and filters of system calls refuse the call. EXDEV: a file system is mounted on the way; or
    // a rename moves the file out of the directory before the call ends (complete_walk() of Linux).
    const bool is_refused =
        errno == ENOSYS || errno == EPERM || errno == EINVAL || errno == EAGAIN || errno == EXDEV;
    if (!is_refused) return fd;
  }
  return open_by_component(directory, path, flags);
}

Result<std::shared_ptr<EnclosedStorage>> EnclosedStorage::open(const std::filesystem::path& directory) {
  auto found = follow_trusted_links(AT_FDCWD, directory / "");
  RETURN_IF_ERROR(found);
  auto absolute = absolute_path(directory);
  RETURN_IF_ERROR(absolute);
  std::filesystem::path real = real_path_of(found->fd.get(), *absolute);
  return std::shared_ptr<EnclosedStorage>(
      new EnclosedStorage(std::move(found->fd), {directory, std::move(*absolute), std::move(real)}));
}

Result<UniqueFd> EnclosedStorage::opened(const std::filesystem::path& path, int flags,
                                         UniqueFd* above) const {
  for (const std::filesystem::path& name : names_) {
    const auto below = path_below(name, path);
    if (!below) continue;
    UniqueFd fd;
    if (above == nullptr) {
      fd = open_beneath(directory_.get(), *below, flags);
    } else {
      const std::filesystem::path directory = below->has_parent_path() ? below->parent_path() : ".";
      *above = open_beneath(directory_.get(), directory, O_PATH | O_DIRECTORY);
      if (*above) fd = open_beneath(above->get(), below->filename(), flags);
    }
    if (fd) return fd;
    if (errno == EXDEV)
      return fail(ErrorCode::System, EXDEV,
                  path.string() + ": is a mount of another user, or lies in one: not entered");
    if (errno != ELOOP) return fail_system(errno, path.string(), "open");
    return fail(ErrorCode::System, ELOOP,
                path.string() + ": is a symbolic link, or lies behind one: expected a file in " +
                    names_.front().string() + " itself");
  }
  return fail(ErrorCode::System, ELOOP,
              fmt::format("{}: does not lie in {}", path.string(), names_.front().string()));
}

Result<std::unique_ptr<File>> EnclosedStorage::open(const std::filesystem::path& path, Access access) {
  if (access == Access::ReadWrite) return read_only(path);
  // O_NONBLOCK: a named pipe must be refused below instead of blocking.
  UniqueFd directory;
  auto fd = opened(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, &directory);
  RETURN_IF_ERROR(fd);
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_system(errno, path.string(), "stat");
  if (S_ISDIR(st.st_mode))
    return fail(ErrorCode::System, EISDIR, path.string() + ": is a directory, not a file");
  if (!S_ISREG(st.st_mode)) return fail(ErrorCode::System, EINVAL, path.string() + ": is not a regular file");
  const auto mover = find_writer_who_may_not_read(directory.get(), fd->get());
  RETURN_IF_ERROR(mover);
  if (*mover) {
    return fail(ErrorCode::System, EPERM,
                fmt::format("{}: belongs to user {}. {} may write its directory, and may have moved it there "
                            "without the right to read it: if it is to be read, let {} read it, or only its "
                            "owner write the directory",
                            path.string(), st.st_uid, **mover, **mover));
  }
  return make_system_file(std::move(*fd), path.string());
}

Result<FileStatus> EnclosedStorage::status(const std::filesystem::path& path) {
  auto fd = opened(path, O_PATH);
  RETURN_IF_ERROR(fd);
  return system_status(fmt::format("/proc/self/fd/{}", fd->get()), path.string());
}

Result<std::vector<std::string>> EnclosedStorage::list(const std::filesystem::path& directory,
                                                       const std::string& prefix) {
  auto fd = opened(directory, O_PATH | O_DIRECTORY);
  RETURN_IF_ERROR(fd);
  return system_storage().list(fmt::format("/proc/self/fd/{}", fd->get()), prefix);
}

Result<std::unique_ptr<File>> EnclosedStorage::create_unnamed(const std::filesystem::path& fallback) {
  return read_only(fallback);
}

Result<void> EnclosedStorage::publish(File&, const std::filesystem::path& path) {
  return read_only(path);
}

Result<void> EnclosedStorage::remove(const std::filesystem::path& path) {
  return read_only(path);
}

Result<void> EnclosedStorage::sync_directory(const std::filesystem::path& directory) {
  return read_only(directory);
}

}  // namespace stfs
