// Transactions over several archives, with losses of power, kills and failing calls at any place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stfs::test {

struct GroupCounts {
  std::uint64_t states = 0;
  std::uint64_t in_recovery = 0;  // of these, after a crash of a recovery
  std::uint64_t failed = 0;       // groups in which a call failed
  std::uint64_t committed = 0;
};

/// The users and hosts that commit and recover.
enum class GroupWorld : std::uint8_t {
  Simple,  // one user on one host
  Edges,   // users of a group, hosts without birth times, devices and boots that change, durabilities; a
           // concurrent recovery
};

/// Runs everything that one seed decides. @return the mistake: archives of different commits, a lost commit,
/// a file left behind.
std::optional<std::string> run_groups(std::uint64_t seed, GroupCounts& counts,
                                      GroupWorld world = GroupWorld::Simple);

}  // namespace stfs::test
