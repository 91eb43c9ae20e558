// Sets the owner first: chown(2) clears set-id bits, so the mode has to be set afterwards.
#include "core/storage/file_attributes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"

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

}  // namespace

Result<void> copy_file_attributes(const std::filesystem::path& path, int to) {
  const UniqueFd opened(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) return fail_system(errno, path.native(), "open");
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0) return fail_system(errno, path.native(), "stat");
  if (!S_ISREG(status.st_mode)) return {};
  if (auto ok = copy_owner_and_mode(status, to, path.native()); !ok) return ok;
  // It leads to the file that was looked at, whatever the path names now.
  const std::string from = fmt::format("/proc/self/fd/{}", opened.get());
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

}  // namespace stfs
