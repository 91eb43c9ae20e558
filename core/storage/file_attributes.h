// Copies a file's attributes, so that a file that replaces another one has the same ones.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// Gives the open file `to` the permissions, owner, group and extended attributes of the regular file at
/// the path. A user who plants a file there must not get rights to these bytes: so a link, any other kind of
/// file, and a file that may_be_planted() gives nothing. Set-id bits, the sticky bit and attributes of
/// `security.` and `trusted.` are never copied. Without an administrator's rights it leaves out a foreign
/// owner and access control lists. Losing an attribute of `user.` is a failure.
/// @param most  Where group or others may write the directory, another user can give this name to any file of
///              this process's user. The mode then allows no more than this one, which is for the group that
///              `to` has, and an access control list is not copied.
Result<void> copy_file_attributes(const std::filesystem::path& path, int to, mode_t most = 0666);
/// The same from an open regular file, which the caller believes.
Result<void> copy_file_attributes(int from, int to);

/// Whether another user may have put the file at this path, to have its owner and mode copied, or to be
/// taken for a model's: group or others may write the directory, and the file belongs neither to the
/// directory's owner, nor to this process's user or root, or it has other names. A link is not followed: its
/// own owner counts. So does another user's mount (foreign_mount.h). False in a storage of a test.
bool may_be_planted(const Storage& storage, const std::filesystem::path& path);

/// What a name led to when it was looked up, once.
struct NamedFile {
  FileStatus status;            // of strict_status_of() (permissions.h). The mtime is 0
  bool may_be_planted = false;  // as the function of that name says
};
/// Looks up a file that this process does not open otherwise. Of an open file, ask the file: another user may
/// have given its name to another one. A link is not followed (ELOOP).
Result<NamedFile> look_up_file(Storage& storage, const std::filesystem::path& path);

}  // namespace stfs
