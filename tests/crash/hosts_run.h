// Processes on one host or several change one archive concurrently, with kills and losses of power.
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
  std::size_t openers = 0;            // open the archive for writing and read it
  std::size_t commits = 3;            // of each writer
  std::size_t slots = 0;              // the number of slots that the writers use; 0: all
  bool each_its_own = false;          // no two writers change the same bytes, but maybe the same blocks
  std::size_t kills_one_in = 0;       // storage calls; 0: never
  bool dies_in_syncs = false;         // kills only at syncs of journals, whose bytes may not be on the disk
  std::size_t snapshots_one_in = 50;  // storage calls, to lose the power at the snapshot
  bool keeps_journal = false;         // small commits go through lane journals
  bool dawdles = false;               // a sync of a journal sometimes takes long, while others run
  bool dawdles_at_end = false;        // a sync of the archive sometimes takes long
  bool has_stranger = false;          // a program without journals writes into the archive, without a sync
  bool begins_with_journal = false;   // a writer that died after its commit point has left it
  std::size_t fails_one_in = 0;       // calls that list the directory or read journals; 0: none
  std::size_t boots = 1;              // a loss of power after each boot ends all processes
  bool are_refused = false;           // every commit fails, with EPERM or EMLINK
  // A new process draws one user, mount, durability and path.
  std::vector<DiskUser> users = {{}};
  std::vector<DiskMount> mounts = {{}};  // replace the mount of the disk's options
  std::vector<Durability> durabilities = {Durability::Power};
  std::vector<std::string_view> paths = {kArchivePath};  // the archive's names
  std::vector<DiskUser> onlookers = {};                  // the users of readers; none: `users`
  DiskAccess archive = {};
  DiskOptions disk = {};
  std::vector<SeamCall> lies = {};  // calls that the storage pretends to have done
};

struct HostsCounts {
  std::uint64_t schedules = 0;
  std::uint64_t commits = 0;  // that returned success
  std::uint64_t refused = 0;  // because of locks, or of a failed scan for journals
  std::uint64_t kills = 0;
  std::uint64_t power_losses = 0;
  std::uint64_t looks = 0;  // contents that readers found right

  /// States of the disk that were judged.
  [[nodiscard]] std::uint64_t states() const { return schedules + power_losses; }
  HostsCounts& operator+=(const HostsCounts& other);
};

/// One user on one host.
const std::vector<HostsScenario>& hosts_scenarios();
/// Several users, devices, boots, durabilities and names; strangers; failing scans for journals.
const std::vector<HostsScenario>& edge_scenarios();

/// Runs one schedule, and writes every call to `trace`. @return the mistake: a lost update, a torn
/// transaction, a file left behind.
std::optional<std::string> run_hosts(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts,
                                     std::ostream* trace = nullptr);

}  // namespace stfs::test
