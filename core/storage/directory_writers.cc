#include "core/storage/directory_writers.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/storage/group_members.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

bool may_all_read(const Permissions& file) {
  return (file.mode & S_IRGRP) != 0 && (file.mode & S_IROTH) != 0;
}

bool may_user_read(const Permissions& file, uid_t user) {
  if (is_same_user(user, file.uid) || may_all_read(file)) return true;
  return (file.mode & S_IRGRP) != 0 && is_known_group(file.gid) &&
         membership_of(system_storage(), user, file.gid) == Membership::Member;
}

bool may_group_read(const Permissions& file, gid_t group) {
  if (may_all_read(file)) return true;
  return (file.mode & S_IRGRP) != 0 && group == file.gid && is_known_group(group);
}

}  // namespace

Result<std::optional<std::string>> find_writer_who_may_not_read(int directory, int file) {
  struct stat of_directory {};
  struct stat of_file {};
  if (::fstat(directory, &of_directory) != 0 || ::fstat(file, &of_file) != 0)
    return fail_system(errno, "a file of another user", "stat");
  const Permissions readers = permissions_of(of_file, file);
  const Permissions writers = permissions_of(of_directory, directory);
  const auto found = [](std::string who) { return std::optional<std::string>(std::move(who)); };
  const bool is_trusted = of_directory.st_uid == 0 || is_same_user(of_directory.st_uid, ::geteuid());
  if (!is_trusted && !may_user_read(readers, of_directory.st_uid))
    return found(fmt::format("user {}", of_directory.st_uid));
  if ((of_directory.st_mode & S_IWOTH) != 0 && !may_all_read(readers)) return found("every user");
  const bool is_publishers = is_same_user(of_file.st_uid, of_directory.st_uid);
  if (!is_publishers && (writers.mode & S_IWGRP) != 0 && !may_group_read(readers, of_directory.st_gid))
    return found(fmt::format("group {}", of_directory.st_gid));
  return std::optional<std::string>();
}

}  // namespace stfs
