// The kernel's form of an access control list, for setxattr(2).
#pragma once

#include <endian.h>
#include <linux/posix_acl_xattr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stfs::test {

// Copied from linux/posix_acl.h, which programs can't include.
inline constexpr unsigned kAclUserObject = 0x01;
inline constexpr unsigned kAclUser = 0x02;
inline constexpr unsigned kAclGroupObject = 0x04;
inline constexpr unsigned kAclMask = 0x10;
inline constexpr unsigned kAclOther = 0x20;

struct AclEntry {
  unsigned tag;
  unsigned bits;
  unsigned id = ~0U;  // of a single user
};

inline std::string access_list(const std::vector<AclEntry>& entries) {
  const posix_acl_xattr_header header{.a_version = htole32(2)};
  std::string text(reinterpret_cast<const char*>(&header), sizeof header);
  for (const AclEntry& entry : entries) {
    posix_acl_xattr_entry raw{};
    raw.e_tag = htole16(static_cast<std::uint16_t>(entry.tag));
    raw.e_perm = htole16(static_cast<std::uint16_t>(entry.bits));
    raw.e_id = htole32(entry.id);
    text.append(reinterpret_cast<const char*>(&raw), sizeof raw);
  }
  return text;
}

}  // namespace stfs::test
