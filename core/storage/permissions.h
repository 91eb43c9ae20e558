// Computes the rights to read and write a file from its mode, owner and access control list, and combines the
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
/// Does the same for an open file or directory.
/// @param status  the descriptor's fstat(2).
Permissions permissions_of(const struct stat& status, int descriptor);

/// The mode of a file that is made from others.
struct NewFileMode {
  mode_t mode = 0666;
  /// The group that the mode's group bits are for. Nothing: the group that the directory gives.
  std::optional<gid_t> group{};
  /// The owner of all files that it is made from. Nothing: it is made from no file. kNoUser: they have
  /// several owners.
  std::optional<uid_t> owner{};

  static constexpr uid_t kNoUser = static_cast<uid_t>(-1);
  /// The mode for a file that has got this group: a directory with the set-group-ID bit, or the maker, may
  /// have given it another one. Then neither group nor others get what `mode` forbids to one of the two.
  [[nodiscard]] mode_t in_group(gid_t gid) const;
};
/// Allows what both modes allow.
NewFileMode strictest(const NewFileMode& one, const NewFileMode& other);

/// Returns the mode of a file that is made from an open file, without execution. Access control lists are
/// included. The owner may always read and write. If the file's status can't be read, only the owner may.
NewFileMode mode_of_copy(const File& file);

/// Returns the status of an open file with these bits, and with the owner of owner_of() (mount_record.h).
Result<FileStatus> strict_status_of(const File& file);
/// Does the same for an open file or directory. O_PATH is enough.
/// @param status  the descriptor's status.
/// @param descriptor  -1: not open, as in a storage of a test.
FileStatus strict_status_of(FileStatus status, int descriptor);

/// Returns true if an open file or directory has an access control list in addition to the mode bits.
bool has_access_list(int descriptor);
/// Removes the list that a file may have got from its directory's default list. The file then has the rights
/// of its mode.
void drop_access_list(int descriptor);

/// Returns permissions that allow only root what one of the two files forbids. Their owner is the first
/// file's.
Permissions strictest(const Permissions& one, const Permissions& other);
/// Returns permissions that allow everything that one of the two files allows. Their owner is the first
/// file's.
Permissions loosest(const Permissions& one, const Permissions& other);

}  // namespace stfs
