// Answers whether a user is a member of a group, by the user database of this host, and whether two numbers
// stand for one user.
//
// What the database says may come over a network, so code asks only about the owner of a file that somebody
// else has left beside an archive.
#pragma once

#include <cstdint>

#include "core/storage/file.h"

namespace stfs {

enum class Membership : std::uint8_t {
  Member,
  NoMember,
  Unknown,  // the database has no such user, or can't be asked
};

/// A Storage that is one of these knows its own users: tests model them.
class MemberStorage {
 public:
  virtual ~MemberStorage() = default;
  [[nodiscard]] virtual Membership membership(std::uint32_t user, std::uint32_t group) const = 0;
};

/// An answer counts for kMembershipSeconds. In that time at most kMostAskedUsers are looked up, and the
/// groups of any other user are unknown: a directory full of files of many owners costs no more.
inline constexpr int kMembershipSeconds = 5;
inline constexpr std::size_t kMostAskedUsers = 64;
/// Any thread may call.
Membership membership_of(const Storage& storage, std::uint32_t user, std::uint32_t group);

/// Whether files of several users may show this number as their owner: in a user namespace, the kernel shows
/// one number (overflowuid) for all users that the namespace does not have.
bool is_of_many(const Storage& storage, std::uint32_t user);
/// Whether two numbers of this process's user namespace stand for one user. Those of unknown users never do.
/// Any thread may call.
bool is_same_user(std::uint32_t one, std::uint32_t other);
/// Whether the number can be that of one group only.
bool is_known_group(std::uint32_t group);

}  // namespace stfs
