// Processes of several users, on one host or several, edit and patch one model concurrently: with kills,
// crashes of a host, losses of power, and processes that change a model late, after others have edited it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/edit_judge.h"
#include "tests/support/disk_model.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

struct EditHostsScenario {
  std::string name;
  std::size_t shards = 1;
  std::size_t writers = 3;
  std::size_t readers = 0;
  std::size_t commits = 4;            // attempts of each writer
  std::size_t kills_one_in = 0;       // storage calls; 0: never
  std::size_t crashes_one_in = 0;     // storage calls of all processes, for a crash of a host; 0: never
  std::size_t snapshots_one_in = 60;  // storage calls, to lose the power at the snapshot
  bool is_late = false;               // a writer sometimes waits for long, with the model open
  bool keeps_journal = false;         // small patches go through lane journals
  // A new process draws one of the users and one of the mounts.
  std::vector<DiskUser> users = {{}};
  std::vector<DiskMount> mounts = {{}};
  DiskAccess archive = {};  // of the archives and the index
  DiskOptions disk = {};
  std::vector<SeamCall> lies = {};  // calls that the storage pretends to have done
};

struct EditHostsCounts {
  std::uint64_t schedules = 0;
  std::uint64_t edits = 0;    // that returned success
  std::uint64_t patches = 0;  // that returned success
  std::uint64_t compactions = 0;
  std::uint64_t refused = 0;  // because other processes locked the archive or had changed it
  std::uint64_t stale = 0;    // of these, because others had changed the structure
  std::uint64_t kills = 0;
  std::uint64_t host_crashes = 0;
  JudgeCounts judged;

  EditHostsCounts& operator+=(const EditHostsCounts& other);
};

const std::vector<EditHostsScenario>& edit_hosts_scenarios();

/// Runs one schedule, and writes every call to `trace`. @return the mistake: a lost edit or patch, a torn
/// transaction, an archive that a plain reader misreads, an index that does not fit, a file left behind.
std::optional<std::string> run_edit_hosts(const EditHostsScenario& scenario, std::uint64_t seed,
                                          EditHostsCounts& counts, std::ostream* trace = nullptr);

}  // namespace stfs::test
