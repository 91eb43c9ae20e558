// Sets the owner first: chown(2) clears set-id bits, so the mode has to be set afterwards.
#include "core/storage/file_attributes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/absolute_path.h"
#include "core/base/unique_fd.h"
#include "core/storage/group_members.h"
#include "core/storage/permissions.h"
#include "core/storage/system_file.h"

namespace stfs {
namespace {

Result<void> copy_owner_and_mode(const struct stat& from, int to, const std::string& path) {
  mode_t mode = from.st_mode & 0777;
  if (::fchown(to, from.st_uid, from.st_gid) != 0) {
    // We may still be a member of the group.
    if (::fchown(to, static_cast<uid_t>(-1), from.st_gid) != 0) mode &= 0707;
  }
  if (::fchmod(to, mode) != 0) return fail_system(errno, path, "preserve its mode");
  return {};
}

Result<void> copy_attribute(const std::string& from, int to, const char* name, const std::string& path) {
  const bool is_of_user = std::string_view(name).starts_with("user.");
  if (!is_of_user && !std::string_view(name).starts_with("system.")) return {};
  std::string value(XATTR_SIZE_MAX, '\0');
  const ssize_t size = ::getxattr(from.c_str(), name, value.data(), value.size());
  if (size >= 0 && ::fsetxattr(to, name, value.data(), static_cast<std::size_t>(size), 0) == 0) return {};
  const bool gone = size < 0 && errno == ENODATA;
  if (gone || !is_of_user) return {};
  return fail_system(errno, path, fmt::format("preserve its attribute {}", name));
}

/// It leads to the open file, whatever the file's name leads to now.
std::string path_of(int opened) {
  return fmt::format("/proc/self/fd/{}", opened);
}

/// A file, and the directory in which its name was found.
struct Named {
  UniqueFd file;
  struct stat status {};
  struct stat directory {};
};

/// Does not follow a link of that name. Sets errno if it fails.
std::optional<Named> open_named(const std::filesystem::path& path) {
  Named named;
  const UniqueFd directory(::open(directory_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory || ::fstat(directory.get(), &named.directory) != 0) return std::nullopt;
  named.file = UniqueFd(::openat(directory.get(), path.filename().c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!named.file || ::fstat(named.file.get(), &named.status) != 0) return std::nullopt;
  return named;
}

bool is_planted(const Named& named) {
  const struct stat& file = named.status;
  // With an access control list, the group's bits are its mask: single users may have them.
  if (!S_ISREG(file.st_mode) || (named.directory.st_mode & (S_IWGRP | S_IWOTH)) == 0) return false;
  const bool is_own = file.st_uid == 0 || is_same_user(file.st_uid, ::geteuid());
  return file.st_nlink > 1 || (!is_own && !is_same_user(file.st_uid, named.directory.st_uid));
}

/// @param path  for messages.
Result<void> copy_all(int opened, const struct stat& status, int to, const std::filesystem::path& path) {
  if (auto ok = copy_owner_and_mode(status, to, path.native()); !ok) return ok;
  const std::string from = path_of(opened);
  std::string names(XATTR_LIST_MAX, '\0');
  const ssize_t size = ::listxattr(from.c_str(), names.data(), names.size());
  if (size < 0 && errno == EOPNOTSUPP) return {};
  if (size < 0) return fail_system(errno, path.native(), "list its attributes");
  names.resize(static_cast<std::size_t>(size));
  // A directory's default list gives new files rights that the file has not.
  constexpr const char* kAccessList = "system.posix_acl_access";
  if (::getxattr(from.c_str(), kAccessList, nullptr, 0) < 0 && errno == ENODATA)
    static_cast<void>(::fremovexattr(to, kAccessList));
  for (std::size_t at = 0; at < names.size(); at += std::strlen(names.c_str() + at) + 1) {
    if (auto ok = copy_attribute(from, to, names.c_str() + at, path.native()); !ok) return ok;
  }
  return {};
}

}  // namespace

Result<void> copy_file_attributes(const std::filesystem::path& path, int to) {
  const auto named = open_named(path);
  if (!named) return fail_system(errno, path.native(), "open");
  if (!S_ISREG(named->status.st_mode) || is_planted(*named)) return {};
  return copy_all(named->file.get(), named->status, to, path);
}

Result<void> copy_file_attributes(int from, int to) {
  struct stat status {};
  if (::fstat(from, &status) != 0) return fail_system(errno, "an open file", "stat");
  return copy_all(from, status, to, "an open file");
}

bool may_be_planted(const Storage& storage, const std::filesystem::path& path) {
  if (&storage != &system_storage()) return false;
  const auto named = open_named(path);
  return named && is_planted(*named);
}

Result<NamedFile> look_up_file(Storage& storage, const std::filesystem::path& path) {
  if (&storage != &system_storage()) {
    const auto there = storage.status(path);
    return there ? Result<NamedFile>(NamedFile{.status = *there}) : tl::unexpected(there.error());
  }
  const auto named = open_named(path);
  if (!named) return fail_system(errno, path.native(), "look up");
  if (S_ISLNK(named->status.st_mode)) return fail_system(ELOOP, path.native(), "look up");
  const auto status = system_status(path_of(named->file.get()), path.native());
  if (!status) return tl::unexpected(status.error());
  return NamedFile{.status = strict_status_of(*status, named->file.get()),
                   .may_be_planted = is_planted(*named)};
}

}  // namespace stfs
