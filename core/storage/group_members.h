// Answers whether a user is a member of a group, by the user database of this host, and whether two numbers
// mean the same user.
//
// The user database may be on a network, so code asks only about the owner of a file that another user has
// left beside an archive.
#pragma once

#include <cstdint>

#include "core/storage/file.h"

namespace stfs {

enum class Membership : std::uint8_t {
  Member,
  NoMember,
  Unknown,  // the database has no such user, or can't be asked
};

/// A Storage that is also a MemberStorage has its own users: tests model them.
class MemberStorage {
 public:
  virtual ~MemberStorage() = default;
  [[nodiscard]] virtual Membership membership(std::uint32_t user, std::uint32_t group) const = 0;
};

/// An answer is valid for kMembershipSeconds. In that time at most kMostAskedUsers are looked up, and the
/// groups of any other user are unknown. This bounds the cost of a directory with files of many owners.
inline constexpr int kMembershipSeconds = 5;
inline constexpr std::size_t kMostAskedUsers = 64;
/// Any thread may call.
Membership membership_of(const Storage& storage, std::uint32_t user, std::uint32_t group);

/// Returns true if files of several users may show this number as their owner: in a user namespace, the
/// kernel shows one number (overflowuid) for all users that the namespace does not have.
bool is_of_many(const Storage& storage, std::uint32_t user);
/// Returns true if two numbers of this process's user namespace mean the same user. Numbers of unknown users
/// never do. Any thread may call.
bool is_same_user(std::uint32_t one, std::uint32_t other);
/// Returns true if the number means one group, and not all groups that the user namespace lacks.
bool is_known_group(std::uint32_t group);

}  // namespace stfs
