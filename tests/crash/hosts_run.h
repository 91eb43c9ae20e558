// Processes on one host or several that change one archive at a time, with kills and losses of power between.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/disk_model.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

struct HostsScenario {
  std::string_view name;
  std::size_t writers = 3;
  std::size_t readers = 0;
  std::size_t commits = 3;            // of each writer
  std::size_t slots = 0;              // that the writers fight for: only so many of them; 0: all
  bool each_its_own = false;          // no two writers change the same bytes, if the same blocks
  std::size_t kills_one_in = 0;       // at a call of the seam; 0: never
  bool dies_in_syncs = false;         // of journals only: what it wrote before may never be on the disk
  std::size_t snapshots_one_in = 50;  // calls: then the power may be lost
  bool keeps_journal = false;         // small commits go through standing journals
  bool dawdles = false;               // a sync of a journal sometimes takes long, and the others go on
  DiskOptions disk = {};
  std::vector<SeamCall> lies = {};  // calls that the storage pretends to have done
};

struct HostsCounts {
  std::uint64_t schedules = 0;
  std::uint64_t commits = 0;  // that returned success
  std::uint64_t refused = 0;  // because of locks
  std::uint64_t kills = 0;
  std::uint64_t power_losses = 0;
};

const std::vector<HostsScenario>& hosts_scenarios();

/// One schedule; every call is told to `trace`. @return what is wrong: an update lost, a transaction torn,
/// something left behind.
std::optional<std::string> run_hosts(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts,
                                     std::ostream* trace = nullptr);

}  // namespace stfs::test
