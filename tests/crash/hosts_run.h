// Processes on one host or several that change one archive at a time, with kills and losses of power between.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "core/base/durability.h"
#include "tests/crash/workload.h"
#include "tests/support/disk_model.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

struct HostsScenario {
  std::string name;
  std::size_t writers = 3;
  std::size_t readers = 0;
  std::size_t openers = 0;            // open it for writing, look at it and go
  std::size_t commits = 3;            // of each writer
  std::size_t slots = 0;              // that the writers fight for: only so many of them; 0: all
  bool each_its_own = false;          // no two writers change the same bytes, if the same blocks
  std::size_t kills_one_in = 0;       // at a call of the seam; 0: never
  bool dies_in_syncs = false;         // of journals only: what it wrote before may never be on the disk
  std::size_t snapshots_one_in = 50;  // calls: then the power may be lost
  bool keeps_journal = false;         // small commits go through lane journals
  bool dawdles = false;               // a sync of a journal sometimes takes long, and the others go on
  bool dawdles_at_end = false;        // the same of the archive's sync
  bool has_stranger = false;          // who knows no journal writes into the archive and syncs nothing
  bool begins_with_journal = false;   // that a writer has left who died behind his commit point
  std::size_t fails_one_in = 0;       // looks at the directory or at a journal; 0: none
  std::size_t boots = 1;              // the power is lost between them, and everybody begins again
  bool are_refused = false;           // every commit is, with EPERM or EMLINK
  // Each process has one of each, drawn when it is started.
  std::vector<DiskUser> users = {{}};
  std::vector<DiskMount> mounts = {{}};  // what the disk's options say of it does not count
  std::vector<Durability> durabilities = {Durability::Power};
  std::vector<std::string_view> paths = {kArchivePath};  // the archive's names
  std::vector<DiskUser> onlookers = {};                  // who read; none: the users
  DiskAccess archive = {};
  DiskOptions disk = {};
  std::vector<SeamCall> lies = {};  // calls that the storage pretends to have done
};

struct HostsCounts {
  std::uint64_t schedules = 0;
  std::uint64_t commits = 0;  // that returned success
  std::uint64_t refused = 0;  // because of locks, or of a look that failed
  std::uint64_t kills = 0;
  std::uint64_t power_losses = 0;
  std::uint64_t looks = 0;  // contents that somebody read and that were right

  /// States of the disk that were judged.
  [[nodiscard]] std::uint64_t states() const { return schedules + power_losses; }
  HostsCounts& operator+=(const HostsCounts& other);
};

/// One user on one host, as far as the scenarios know.
const std::vector<HostsScenario>& hosts_scenarios();
/// Several users, devices, boots, durabilities and names; strangers; looks that fail.
const std::vector<HostsScenario>& edge_scenarios();

/// One schedule; every call is told to `trace`. @return what is wrong: an update lost, a transaction torn,
/// something left behind.
std::optional<std::string> run_hosts(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts,
                                     std::ostream* trace = nullptr);

}  // namespace stfs::test
