// Processes of several users, on one host or several, that edit and patch one model at a time: with kills,
// crashes of a host, losses of power, and processes that come back late to a model that others have edited.
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
  std::size_t commits = 4;            // that each writer tries
  std::size_t kills_one_in = 0;       // at a call of the seam; 0: never
  std::size_t crashes_one_in = 0;     // of a host, at a call of anybody; 0: never
  std::size_t snapshots_one_in = 60;  // calls: then the power may be lost
  bool is_late = false;               // a writer sometimes stays away for long, with the model open
  bool keeps_journal = false;         // small patches go through lane journals
  // Each process has one of each, drawn when it is started.
  std::vector<DiskUser> users = {{}};
  std::vector<DiskMount> mounts = {{}};
  DiskAccess archive = {};  // of the archives and the index
  DiskOptions disk = {};
  std::vector<SeamCall> lies = {};  // calls that the storage pretends to have done
};

struct EditHostsCounts {
  std::uint64_t schedules = 0;
  std::uint64_t edits = 0;    // that returned success
  std::uint64_t patches = 0;  // likewise
  std::uint64_t compactions = 0;
  std::uint64_t refused = 0;  // because others had the archive or had changed it
  std::uint64_t stale = 0;    // of these, because others had changed the structure
  std::uint64_t kills = 0;
  std::uint64_t host_crashes = 0;
  JudgeCounts judged;

  EditHostsCounts& operator+=(const EditHostsCounts& other);
};

const std::vector<EditHostsScenario>& edit_hosts_scenarios();

/// One schedule; every call is told to `trace`. @return what is wrong: an edit or a patch lost, a transaction
/// torn, an archive that a plain reader misreads, an index that does not fit, something left behind.
std::optional<std::string> run_edit_hosts(const EditHostsScenario& scenario, std::uint64_t seed,
                                          EditHostsCounts& counts, std::ostream* trace = nullptr);

}  // namespace stfs::test
