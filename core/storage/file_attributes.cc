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
#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/permissions.h"
#include "core/storage/system_file.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

constexpr mode_t kNineBits = 0777;
constexpr mode_t kOwnersBits = 0700;
constexpr mode_t kReadWriteForAll = 0666;

/// @return whether the file now has the group.
Result<bool> give_owner_and_mode(const Permissions& permissions, int to, const std::string& path) {
  // A directory's default list has given rights to single users. The mode would open them: it is their mask.
  drop_access_list(to);
  mode_t mode = permissions.mode;
  // If the owner can't be given, we may still be a member of the group.
  const bool has_group = ::fchown(to, permissions.uid, permissions.gid) == 0 ||
                         ::fchown(to, static_cast<uid_t>(-1), permissions.gid) == 0;
  // Without the group, its members are others.
  constexpr unsigned kGroupShift = 3;
  if (!has_group) mode &= kOwnersBits | (mode >> kGroupShift & 07U);
  if (::fchmod(to, mode) != 0) return fail_system(errno, path, "preserve its mode");
  return has_group;
}

/// Copies the attribute if its name begins with "user.", or if it is an access control list and `with_list`
/// is set.
Result<void> copy_attribute(const std::string& from, int to, const char* name, bool with_list,
                            const std::string& path) {
  const bool is_of_user = std::string_view(name).starts_with("user.");
  if (!is_of_user && !(with_list && std::string_view(name).starts_with("system."))) return {};
  std::string value(XATTR_SIZE_MAX, '\0');
  const ssize_t size = ::getxattr(from.c_str(), name, value.data(), value.size());
  if (size >= 0 && ::fsetxattr(to, name, value.data(), static_cast<std::size_t>(size), 0) == 0) return {};
  const bool gone = size < 0 && errno == ENODATA;
  if (gone || !is_of_user) return {};
  return fail_system(errno, path, fmt::format("preserve its attribute {}", name));
}

/// Returns a path that leads to the open file, even if the file's name leads elsewhere now.
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
  const auto directory = follow_to_directory(directory_of(path));
  if (!directory) errno = directory.error().errno_value;
  if (!directory || ::fstat(directory->get(), &named.directory) != 0) return std::nullopt;
  auto file = open_entry(directory->get(), path.filename(), O_PATH, path.string());
  if (!file) errno = file.error().errno_value;
  if (!file || ::fstat(file->get(), &named.status) != 0) return std::nullopt;
  named.file = std::move(*file);
  return named;
}

/// Returns true if other users may give names in the directory.
bool may_others_name(const struct stat& directory) {
  // With an access control list, the group's bits are its mask: single users may have them.
  return (directory.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

bool is_planted(const Named& named) {
  const struct stat& file = named.status;
  if (!may_others_name(named.directory)) return false;
  const bool is_own = file.st_uid == 0 || is_same_user(file.st_uid, ::geteuid());
  if (!is_own && !is_same_user(file.st_uid, named.directory.st_uid)) return true;
  return S_ISREG(file.st_mode) && file.st_nlink > 1;
}

/// Returns the permissions, reduced by `most` for users who are not the owner.
Result<Permissions> within(const Permissions& permissions, const NewFileMode& most, int to) {
  struct stat made {};
  if (::fstat(to, &made) != 0) return fail_system(errno, "a new file", "stat");
  Permissions both = strictest(
      permissions,
      {.mode = most.mode, .uid = most.owner.value_or(made.st_uid), .gid = most.group.value_or(made.st_gid)});
  both.mode |= permissions.mode & kOwnersBits;
  return both;
}

/// @param most  if given, limits the mode; then no access control list is copied.
/// @param path  for messages.
Result<void> copy_all(int opened, const struct stat& status, int to, const std::optional<NewFileMode>& most,
                      const std::filesystem::path& path) {
  const std::string from = path_of(opened);
  Permissions permissions = permissions_of(status, opened);
  if (most) {
    const auto limited = within(permissions, *most, to);
    RETURN_IF_ERROR(limited);
    permissions = *limited;
  }
  const auto has_group = give_owner_and_mode(permissions, to, path.native());
  RETURN_IF_ERROR(has_group);
  std::string names(XATTR_LIST_MAX, '\0');
  const ssize_t size = ::listxattr(from.c_str(), names.data(), names.size());
  if (size < 0 && errno == EOPNOTSUPP) return {};
  if (size < 0) return fail_system(errno, path.native(), "list its attributes");
  names.resize(static_cast<std::size_t>(size));
  // A list may give rights to the group, and the file's own group is not always the new one's.
  const bool with_list = *has_group && !most;
  for (std::size_t at = 0; at < names.size(); at += std::strlen(names.c_str() + at) + 1) {
    RETURN_IF_ERROR(copy_attribute(from, to, names.c_str() + at, with_list, path.native()));
  }
  return {};
}

}  // namespace

bool may_own(std::uint32_t owner, const NewFileMode& mode) {
  if (owner == 0 || is_same_user(owner, ::geteuid())) return true;
  if (mode.owner && is_same_user(owner, *mode.owner)) return true;
  if ((mode.mode & S_IRGRP) == 0) return false;
  if ((mode.mode & S_IROTH) != 0) return true;
  return mode.group && is_known_group(*mode.group) &&
         membership_of(system_storage(), owner, *mode.group) == Membership::Member;
}

Result<void> copy_file_attributes(const std::filesystem::path& path, int to, const NewFileMode& most) {
  const auto named = open_named(path);
  if (!named) return fail_system(errno, path.native(), "open");
  if (!S_ISREG(named->status.st_mode) || is_planted(*named)) return {};
  if (!may_own(named->status.st_uid, most)) return {};
  std::optional<NewFileMode> limit;
  if ((most.mode & kReadWriteForAll) != kReadWriteForAll) limit = most;
  return copy_all(named->file.get(), named->status, to, limit, path);
}

Result<void> copy_file_attributes(int from, int to) {
  struct stat status {};
  if (::fstat(from, &status) != 0) return fail_system(errno, "an open file", "stat");
  return copy_all(from, status, to, std::nullopt, "an open file");
}

bool may_be_planted(const Storage& storage, const std::filesystem::path& path) {
  if (!storage.is_system()) return false;
  const auto named = open_named(storage.reached(path));
  return named ? is_planted(*named) : errno == EXDEV;  // another user's mount
}

Result<NamedFile> look_up_file(Storage& storage, const std::filesystem::path& path) {
  if (!storage.is_system()) {
    const auto there = storage.status(path);
    return there ? Result<NamedFile>(NamedFile{.status = *there}) : tl::unexpected(there.error());
  }
  const auto named = open_named(storage.reached(path));
  if (!named) return fail_system(errno, path.native(), "look up");
  if (S_ISLNK(named->status.st_mode)) return fail_system(ELOOP, path.native(), "look up");
  const auto status = system_status(path_of(named->file.get()), path.native());
  RETURN_IF_ERROR(status);
  return NamedFile{.status = strict_status_of(*status, named->file.get()),
                   .may_be_planted = is_planted(*named)};
}

}  // namespace stfs
