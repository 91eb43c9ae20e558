// Users on several hosts edit, patch and compact one model many thousand times, one transaction after the
// other. Processes die, hosts crash, the power is lost, and other processes recover.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>

#include "tests/crash/edit_judge.h"

namespace stfs::test {

struct SequenceScenario {
  std::string name;
  std::size_t shards = 1;
  bool keeps_journal = false;  // small patches go through lane journals
  std::vector<DiskUser> users = {};
  std::vector<DiskMount> mounts = {};
  DiskOptions disk = {};
};

const std::vector<SequenceScenario>& sequence_scenarios();

struct SequenceCounts {
  std::uint64_t edits = 0;        // done, at once or by a recovery
  std::uint64_t patches = 0;      // done, at once or by a recovery
  std::uint64_t compactions = 0;  // that returned success
  std::uint64_t refused = 0;      // because another process has the model open, or has changed it
  std::uint64_t stale = 0;        // of these, because the model was changed
  std::uint64_t kills = 0;
  std::uint64_t host_crashes = 0;
  std::uint64_t power_losses = 0;
  JudgeCounts judged;

  SequenceCounts& operator+=(const SequenceCounts& other);
};
std::ostream& operator<<(std::ostream& out, const SequenceCounts& counts);

/// Where to write the states for the reference library; an empty directory: nowhere.
struct SequenceRecord {
  std::filesystem::path directory = {};
  std::size_t one_in = 20;  // crashes
};

/// Makes transactions until `steps` edits and patches are done. Compares the model with the one in memory
/// after each recovery, after every 16 steps, and at the end. @return the mistake, if any.
std::optional<std::string> run_sequence(const SequenceScenario& scenario, std::uint64_t seed,
                                        std::uint64_t steps, SequenceCounts& counts,
                                        const SequenceRecord& record = {});

}  // namespace stfs::test
