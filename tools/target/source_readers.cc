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
#include "core/storage/mount_record.h"
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

Result<bool> is_private(const File& source) {
  const auto of_source = permissions_of(source);
  RETURN_IF_ERROR(of_source);
  return (of_source->mode & S_IRGRP) == 0 || (of_source->mode & S_IROTH) == 0;
}

Result<bool> has_more_readers(const Model& target, const File& source) {
  const auto of_source = permissions_of(source);
  RETURN_IF_ERROR(of_source);
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

/// @param target  for the message. Others may read it.
Result<void> check_not_moved(const std::filesystem::path& target, const File& source,
                             const std::string& named) {
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
                  named, target.string(), **mover, **mover));
}

}  // namespace

Result<void> check_source_readers(const Model& target, const File& source, const std::string& named) {
  const auto is_hidden = is_private(source);
  RETURN_IF_ERROR(is_hidden);
  const auto shows_more = *is_hidden ? has_more_readers(target, source) : Result<bool>(false);
  RETURN_IF_ERROR(shows_more);
  return *shows_more ? check_not_moved(target.path(), source, named) : Result<void>();
}

Result<void> check_source_readers(int target, const std::filesystem::path& target_path, const Model& source) {
  struct stat status {};
  if (::fstat(target, &status) != 0) return fail_system(errno, target_path.native(), "query");
  const Permissions of_target = permissions_of(status, target);
  const bool has_list = has_access_list(target);
  for (const auto& shard : source.shards()) {
    const File* const file = shard.archive ? shard.archive->local_file() : nullptr;
    if (file == nullptr) continue;
    const auto is_hidden = is_private(*file);
    RETURN_IF_ERROR(is_hidden);
    if (!*is_hidden) continue;
    const auto of_source = permissions_of(*file);
    RETURN_IF_ERROR(of_source);
    if (has_list || has_more_readers(of_target, *of_source)) {
      RETURN_IF_ERROR(check_not_moved(target_path, *file, shard.path.string()));
    }
  }
  return {};
}

Result<void> check_trusted_links(const std::string& named, const Model& model) {
  auto found = follow_trusted_links(AT_FDCWD, named);
  // The user has named another user's mount itself.
  const int why = found ? 0 : found.error().errno_value;
  if (why == EXDEV) found = follow_trusted_links(AT_FDCWD, named + "/");
  RETURN_IF_ERROR(found);
  const auto mount = mount_of(found->fd.get());
  const auto naming = mount ? mount->user : std::nullopt;
  if (naming && *naming != 0 && !is_same_user(*naming, ::geteuid())) {
    for (const auto& shard : model.shards()) {
      const File* const archive = shard.archive ? shard.archive->local_file() : nullptr;
      if (archive == nullptr) continue;
      const auto is_hidden = is_private(*archive);
      RETURN_IF_ERROR(is_hidden);
      const auto status = archive->status();
      RETURN_IF_ERROR(status);
      if (!*is_hidden || is_same_user(status->uid, *naming)) continue;
      return fail(ErrorCode::System, EACCES,
                  fmt::format("{}: is a mount of user {}, to whom the archive that it names does not belong: "
                              "name {} itself",
                              named, *naming, shard.path.string()));
    }
  }
  const File* const file = model.is_sharded() || model.delta() ? nullptr : model.front().local_file();
  struct stat opened {};
  const bool is_archive = S_ISREG(found->status.st_mode) && file != nullptr;
  if (!is_archive || (::fstat(file->descriptor(), &opened) == 0 && is_as(opened, found->status))) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE, named + ": leads to another file now: try again");
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
