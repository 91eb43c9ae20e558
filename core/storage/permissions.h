// Computes who may read and write a file by its mode, owner and access control list, and combines the
// permissions of several files.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

struct Permissions {
  mode_t mode = 0;  // the nine permission bits
  uid_t uid = 0;
  gid_t gid = 0;

  friend bool operator==(const Permissions&, const Permissions&) = default;
};

/// Returns the current permissions of an open file. An access control list may grant or deny a right to
/// single users or groups, and mode bits can't express that. The bits of group and others then allow only
/// what every entry of the list allows.
Result<Permissions> permissions_of(const File& file);
/// The same of an open file or directory.
/// @param status  what fstat(2) says of the descriptor.
Permissions permissions_of(const struct stat& status, int descriptor);

/// The mode of a file that is made from others.
struct NewFileMode {
  mode_t mode = 0666;
  /// Whom the bits of the group are for. Nothing: for the group that the directory gives, whichever it is.
  std::optional<gid_t> group{};

  /// The mode for a file that has got this group: a directory with the set-group-ID bit, or the maker, may
  /// have given it another one. Then neither group nor others get what `mode` forbids to one of the two.
  [[nodiscard]] mode_t in_group(gid_t gid) const;
};
/// Allows what both modes allow.
NewFileMode strictest(const NewFileMode& one, const NewFileMode& other);

/// The status of an open file with such bits, and with the owner of owner_of() (mount_record.h).
Result<FileStatus> strict_status_of(const File& file);
/// The same of an open file or directory. O_PATH is enough.
/// @param status      of the descriptor.
/// @param descriptor  -1: not open, as in a storage of a test.
FileStatus strict_status_of(FileStatus status, int descriptor);

/// Whether an open file or directory has an access control list, besides the mode bits.
bool has_access_list(int descriptor);
/// Takes the list away that a file may have got from its directory's default list. It then has the rights of
/// its mode.
void drop_access_list(int descriptor);

/// The result allows nobody but root anything that one of the two files forbids. Its owner is the first
/// file's.
Permissions strictest(const Permissions& one, const Permissions& other);
/// The result allows everything that one of the two files allows. Its owner is the first file's.
Permissions loosest(const Permissions& one, const Permissions& other);

}  // namespace stfs
