// Reads the kernel's record of the mount that a file is in. Does not ask the mounted file system itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace stfs {

struct MountRecord {
  std::string type;                   // as in mountinfo: ext4, fuse.NAME
  std::optional<std::uint32_t> user;  // the user who has mounted it; only for FUSE
};

/// Returns nothing if the mount is not in this process's mount namespace, or if /proc does not list it.
std::optional<MountRecord> mount_of(int descriptor);

/// Returns false if the file is in a mount of another mount namespace, so that its path in /proc means
/// another file here.
bool is_in_this_namespace(int descriptor);

/// Returns the owner of an open file, directory or link. The server of a FUSE file system may report any
/// owner: so all of its files have the user who has mounted it as owner, unless that is root. Nothing: the
/// mount's record can't be found.
/// @param told  the owner by fstat(2).
std::optional<uid_t> owner_of(int descriptor, uid_t told);

}  // namespace stfs
