// Sets the owner first: chown(2) clears set-id bits, so the mode has to be set afterwards.
#include "core/storage/file_attributes.h"

#include <fmt/format.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

namespace stfs {
namespace {

Result<void> copy_owner_and_mode(const std::filesystem::path& from, int to) {
  struct stat status {};
  if (::stat(from.c_str(), &status) != 0) return fail_system(errno, from.native(), "stat");
  mode_t mode = status.st_mode & 07777;
  if (::fchown(to, status.st_uid, status.st_gid) != 0) {
    // We may still be a member of the group. Set-id bits would apply to the wrong owner, so drop them.
    mode &= 0777;
    if (::fchown(to, static_cast<uid_t>(-1), status.st_gid) != 0) mode &= 0707;
  }
  if (::fchmod(to, mode) != 0) return fail_system(errno, from.native(), "preserve its mode");
  return {};
}

Result<void> copy_attribute(const std::filesystem::path& from, int to, const char* name) {
  std::string value(XATTR_SIZE_MAX, '\0');
  const ssize_t size = ::getxattr(from.c_str(), name, value.data(), value.size());
  if (size >= 0 && ::fsetxattr(to, name, value.data(), static_cast<std::size_t>(size), 0) == 0) return {};
  const bool gone = size < 0 && errno == ENODATA;
  if (gone || !std::string_view(name).starts_with("user.")) return {};
  return fail_system(errno, from.native(), fmt::format("preserve its attribute {}", name));
}

}  // namespace

Result<void> copy_file_attributes(const std::filesystem::path& from, int to) {
  if (auto ok = copy_owner_and_mode(from, to); !ok) return ok;
  std::string names(XATTR_LIST_MAX, '\0');
  const ssize_t size = ::listxattr(from.c_str(), names.data(), names.size());
  if (size < 0 && errno == EOPNOTSUPP) return {};
  if (size < 0) return fail_system(errno, from.native(), "list its attributes");
  names.resize(static_cast<std::size_t>(size));
  // A directory's default list gives new files rights that the file has not.
  constexpr const char* kAccessList = "system.posix_acl_access";
  if (::getxattr(from.c_str(), kAccessList, nullptr, 0) < 0 && errno == ENODATA)
    static_cast<void>(::fremovexattr(to, kAccessList));
  for (std::size_t at = 0; at < names.size(); at += std::strlen(names.c_str() + at) + 1) {
    if (auto ok = copy_attribute(from, to, names.c_str() + at); !ok) return ok;
  }
  return {};
}

}  // namespace stfs
