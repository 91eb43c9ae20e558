// One model that is edited, patched and compacted many thousand times, one transaction after the other, by
// users on several hosts. Some of them die, hosts crash, the power is lost, and somebody else recovers.
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
  std::uint64_t edits = 0;        // that are done, at once or by a recovery
  std::uint64_t patches = 0;      // likewise
  std::uint64_t compactions = 0;  // that returned success
  std::uint64_t refused = 0;      // because somebody has the model open, or has changed it
  std::uint64_t stale = 0;        // of these, because it was changed
  std::uint64_t kills = 0;
  std::uint64_t host_crashes = 0;
  std::uint64_t power_losses = 0;
  JudgeCounts judged;

  SequenceCounts& operator+=(const SequenceCounts& other);
};
std::ostream& operator<<(std::ostream& out, const SequenceCounts& counts);

/// Where the states lie that the reference library is to read; nothing is written without a directory.
struct SequenceRecord {
  std::filesystem::path directory = {};
  std::size_t one_in = 20;  // crashes
};

/// Goes on until so many edits and patches are done. The model is compared with the one in memory after each
/// recovery, now and then, and at the end. @return what is wrong.
std::optional<std::string> run_sequence(const SequenceScenario& scenario, std::uint64_t seed,
                                        std::uint64_t steps, SequenceCounts& counts,
                                        const SequenceRecord& record = {});

}  // namespace stfs::test
