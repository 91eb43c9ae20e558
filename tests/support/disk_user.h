// Users, groups and permissions of the disk model, as POSIX defines them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stfs::test {

/// The user and groups of a process. User 0 may do everything.
struct DiskUser {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::vector<std::uint32_t> groups = {};  // in addition to gid

  [[nodiscard]] bool is_root() const { return uid == 0; }
  [[nodiscard]] bool is_in(std::uint32_t group) const {
    return gid == group || std::ranges::find(groups, group) != groups.end();
  }
};

/// The owner, group and permissions of a file or a directory.
struct DiskAccess {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t permissions = 0600;
};

inline constexpr std::uint32_t kMayRead = 4;
inline constexpr std::uint32_t kMayWrite = 2;
inline constexpr std::uint32_t kMaySearch = 1;
inline constexpr std::uint32_t kSetGroupId = 02000;
inline constexpr std::uint32_t kSticky = 01000;

/// The first class of owner, group and others that fits the user decides.
/// @param wanted  kMayRead, kMayWrite and kMaySearch, added up.
inline bool permits(const DiskAccess& access, const DiskUser& user, std::uint32_t wanted) {
  if (user.is_root()) return true;
  const unsigned shift = user.uid == access.uid ? 6 : user.is_in(access.gid) ? 3 : 0;
  return ((access.permissions >> shift) & wanted) == wanted;
}

}  // namespace stfs::test
