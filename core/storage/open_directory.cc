#include "core/storage/open_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

namespace stfs {
namespace {

tl::unexpected<Error> no_directory(const std::filesystem::path& path) {
  return fail(ErrorCode::System, ENOTDIR,
              path.string() + ": is a link or a file: expected a directory of its own");
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
  return ::fstat(directory, &st) == 0 && st.st_uid == ::geteuid() && is_empty(directory);
}

Result<OpenDirectory> open_directory(Storage& storage, const std::filesystem::path& path) {
  OpenDirectory opened;
  if (&storage != &system_storage()) {
    auto there = storage.status(path);
    if (!there) return tl::unexpected(there.error());
    if (!S_ISDIR(there->mode)) return no_directory(path);
    opened.path = path;
    opened.status = *there;
    return opened;
  }
  opened.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.fd && (errno == ENOTDIR || errno == ELOOP)) return no_directory(path);
  if (!opened.fd) return fail_system(errno, path.string(), "open");
  struct stat st {};
  if (::fstat(opened.fd.get(), &st) != 0) return fail_system(errno, path.string(), "stat");
  opened.path = fmt::format("/proc/self/fd/{}", opened.fd.get());
  opened.status = directory_status(st);
  return opened;
}

}  // namespace stfs
