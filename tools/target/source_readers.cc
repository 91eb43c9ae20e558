// Compares the readers of source and target, and looks at the source's directory.
#include "tools/target/source_readers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/base/unique_fd.h"
#include "core/storage/directory_writers.h"
#include "core/storage/group_members.h"
#include "core/storage/permissions.h"
#include "core/storage/trusted_links.h"

namespace stfs::tools {
namespace {

/// True if a user who may not read the source may read the target. Root may read both.
/// @param source  not everybody may read it.
bool has_more_readers(const Permissions& target, const Permissions& source) {
  const bool has_same_group = target.gid == source.gid && (source.mode & S_IRGRP) != 0;
  return (target.uid != source.uid && target.uid != 0) || (target.mode & S_IROTH) != 0 ||
         ((target.mode & S_IRGRP) != 0 && !has_same_group);
}

Result<bool> has_more_readers(const Model& target, const File& source) {
  const auto of_source = permissions_of(source);
  RETURN_IF_ERROR(of_source);
  const bool is_public = (of_source->mode & S_IRGRP) != 0 && (of_source->mode & S_IROTH) != 0;
  if (is_public) return false;
  for (const auto& shard : target.shards()) {
    const File* const file = shard.archive ? shard.archive->local_file() : nullptr;
    if (file == nullptr) continue;
    const auto of_target = permissions_of(*file);
    RETURN_IF_ERROR(of_target);
    // permissions_of() leaves out rights that an access control list gives to single users.
    if (has_access_list(file->descriptor()) || has_more_readers(*of_target, *of_source)) return true;
  }
  return false;
}

bool is_as(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

Result<void> check_source_readers(const Model& target, const File& source, const std::string& named) {
  const auto shows_more = has_more_readers(target, source);
  RETURN_IF_ERROR(shows_more);
  if (!*shows_more) return {};
  const std::filesystem::path path = real_path_of(source.descriptor(), named);
  const UniqueFd directory(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat of_file {};
  struct stat of_directory {};
  struct stat at_path {};
  if (!directory || ::fstat(source.descriptor(), &of_file) != 0 ||
      ::fstat(directory.get(), &of_directory) != 0 ||
      ::fstatat(directory.get(), path.filename().c_str(), &at_path, AT_SYMLINK_NOFOLLOW) != 0 ||
      !is_as(of_file, at_path))
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                named + ": was moved or deleted after it was opened: try again");
  // In /tmp and similar directories another user can't exchange this user's file. The directory's owner can.
  const bool is_common = (of_directory.st_mode & S_ISVTX) != 0 &&
                         (of_directory.st_uid == 0 || is_same_user(of_directory.st_uid, ::geteuid()));
  if (is_common && of_file.st_uid == ::geteuid() && of_file.st_nlink == 1) return {};
  const auto mover = find_writer_who_may_not_read(directory.get(), source.descriptor());
  RETURN_IF_ERROR(mover);
  if (!*mover) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("{}: is private, and others may read {}. Its directory may be written by {}, who may "
                  "have moved it there without the right to read it: move it to a directory that only "
                  "you may write, or let {} read it",
                  named, target.path().string(), **mover, **mover));
}

Result<void> check_source_readers(const Model& target, const Model& source, const std::string& named) {
  for (const auto& shard : source.shards()) {
    const File* const file = shard.archive ? shard.archive->local_file() : nullptr;
    if (file == nullptr) continue;
    RETURN_IF_ERROR(check_source_readers(target, *file, named));
  }
  return {};
}

}  // namespace stfs::tools
