// Copies a file's attributes to the file that replaces it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/permissions.h"

namespace stfs {

/// Gives the open file `to` the permissions, owner, group and extended attributes of the regular file at the
/// path. A user who makes a file there must not get rights to these bytes. So nothing is copied from a link,
/// from any other kind of file, from a file that may_be_planted(), or if `most` does not let the file's owner
/// read (may_own()). Set-id bits, the sticky bit and attributes of `security.` and `trusted.` are never
/// copied. Without an administrator's rights it leaves out a foreign owner and access control lists. Losing
/// an attribute of `user.` is a failure.
/// @param most  what the files allow that the new bytes are made from: group and others get no right that it
///              does not give. An access control list is not copied, unless `most` lets everybody read and
///              write. This rule holds in every directory: another user may exchange a directory above, or
///              give the name to a public file.
Result<void> copy_file_attributes(const std::filesystem::path& path, int to, const NewFileMode& most = {});
/// Does the same from an open regular file, which the caller trusts.
Result<void> copy_file_attributes(int from, int to);

/// Returns true if the owner of a file that is replaced may own a new file of this mode: root, this process's
/// user, the owner of all sources, and any user whom the sources let read. Asks the user database if only the
/// group of the sources may read.
bool may_own(std::uint32_t owner, const NewFileMode& mode);

/// Returns true if another user may have put the file at this path, so that its owner and mode are copied, or
/// so that it is taken for a model's file. True if group or others may write the directory, and the file has
/// other names, or an owner other than the directory's owner, this process's user and root. A link is not
/// followed: the link's own owner decides. Also true for another user's mount (foreign_mount.h). False in a
/// storage of a test.
bool may_be_planted(const Storage& storage, const std::filesystem::path& path);

/// The file that a name led to, as one look-up found it.
struct NamedFile {
  FileStatus status;            // of strict_status_of() (permissions.h). The mtime is 0
  bool may_be_planted = false;  // the result of may_be_planted()
};
/// Looks up a file that this process does not open otherwise. Query an open file by its descriptor instead:
/// another user may have given its name to another file. A link is not followed (ELOOP).
Result<NamedFile> look_up_file(Storage& storage, const std::filesystem::path& path);

}  // namespace stfs
