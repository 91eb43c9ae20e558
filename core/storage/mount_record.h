// What the kernel tells about the mount that a file lies in. The mounted file system itself is not asked.
#pragma once

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

}  // namespace stfs
