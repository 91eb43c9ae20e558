// What the kernel tells about the mount that a file lies in. The mounted file system itself is not asked.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace stfs {

struct MountRecord {
  std::string type;                   // as in mountinfo: ext4, fuse.NAME
  std::optional<std::uint32_t> user;  // who has mounted it; only of FUSE
};

/// Nothing if the mount is not in this process's mount namespace, or if /proc does not tell.
std::optional<MountRecord> mount_of(int descriptor);

/// False if the file lies in a mount of another mount namespace, so that its path in /proc means another file
/// here.
bool is_in_this_namespace(int descriptor);

/// The owner of an open file, directory or link. The server of a FUSE file system tells any owner: all that
/// it shows belongs to the user who has mounted it, unless that is root. Nothing: the mount's record can't be
/// found.
/// @param told  the owner by fstat(2).
std::optional<uid_t> owner_of(int descriptor, uid_t told);

}  // namespace stfs
