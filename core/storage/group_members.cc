#include "core/storage/group_members.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {
namespace {

using Clock = std::chrono::steady_clock;
using Groups = std::optional<std::vector<gid_t>>;  // nothing: the user is not known

constexpr std::size_t kMostEntryBytes = 1 << 20;
constexpr int kMostGroups = 1 << 16;  // the kernel's limit (NGROUPS_MAX)

/// Returns the groups of the user with this name.
Groups groups_of(const char* name, gid_t first) {
  int count = 64;
  for (;;) {
    std::vector<gid_t> groups(static_cast<std::size_t>(count));
    const int room = count;
    if (::getgrouplist(name, first, groups.data(), &count) >= 0) {
      groups.resize(static_cast<std::size_t>(count));
      return groups;
    }
    count = std::max(count, 2 * room);
    if (count > kMostGroups) return std::nullopt;
  }
}

Groups look_up(uid_t user) {
  for (std::size_t size = 4096; size <= kMostEntryBytes; size *= 4) {
    std::vector<char> text(size);
    passwd entry{};
    passwd* found = nullptr;
    const int why = ::getpwuid_r(user, &entry, text.data(), text.size(), &found);
    if (why == ERANGE) continue;
    return why == 0 && found != nullptr ? groups_of(found->pw_name, found->pw_gid) : std::nullopt;
  }
  return std::nullopt;
}

/// Caches the answers of the user database.
class AskedUsers {
 public:
  Groups groups(uid_t user) {
    const MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    std::erase_if(asked_, [&](const auto& one) { return one.second.until <= now; });
    const auto known = asked_.find(user);
    if (known != asked_.end()) return known->second.groups;
    if (asked_.size() >= kMostAskedUsers) return std::nullopt;
    Groups groups = look_up(user);
    asked_[user] = {groups, Clock::now() + std::chrono::seconds(kMembershipSeconds)};
    return groups;
  }

 private:
  struct Answer {
    Groups groups;
    Clock::time_point until;
  };
  Mutex mutex_;  // held during a query: one at a time
  std::map<uid_t, Answer> asked_ GUARDED_BY(mutex_);
};

/// The number that the kernel shows for an unknown user or group. Nothing in the first user namespace, which
/// has all of them.
/// @param kind  "uid" or "gid".
std::optional<std::uint32_t> number_for_unknown(const std::string& kind) {
  std::uint32_t first = 1;
  std::uint32_t above = 1;
  std::uint32_t count = 0;
  std::ifstream("/proc/self/" + kind + "_map") >> first >> above >> count;
  if (first == 0 && above == 0 && count == std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  std::uint32_t number = 65534;
  std::ifstream("/proc/sys/kernel/overflow" + kind) >> number;
  return number;
}

}  // namespace

bool is_of_many(const Storage& storage, std::uint32_t user) {
  return dynamic_cast<const MemberStorage*>(&storage) == nullptr && !is_same_user(user, user);
}

bool is_same_user(std::uint32_t one, std::uint32_t other) {
  static const std::optional<std::uint32_t> of_unknown = number_for_unknown("uid");
  return one == other && one != of_unknown;
}

bool is_known_group(std::uint32_t group) {
  static const std::optional<std::uint32_t> of_unknown = number_for_unknown("gid");
  return group != of_unknown;
}

Membership membership_of(const Storage& storage, std::uint32_t user, std::uint32_t group) {
  if (const auto* known = dynamic_cast<const MemberStorage*>(&storage)) return known->membership(user, group);
  static AskedUsers asked;
  const Groups groups = asked.groups(user);
  if (!groups) return Membership::Unknown;
  return std::ranges::find(*groups, group) != groups->end() ? Membership::Member : Membership::NoMember;
}

}  // namespace stfs
