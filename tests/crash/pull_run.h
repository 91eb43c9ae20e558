// Weight sync on the model of a disk: training publishes versions, a host pulls them, and both crash
// anywhere.
//
// In each state that a crash may leave, and once the model was opened, the model is bit for bit one version:
// no older than the last one that a pull has told of. The sync state names that version. Only before the
// first pull has told of one may there be none: then the model is the host's own, the first version, or none
// yet. The next pull brings the model to the newest version that is whole, and leaves nothing else in its
// directory. So it is after kill -9; after a loss of power, too, if the durability is Power.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/crash/pulled_model.h"
#include "tools/sync/diff_encoding.h"

namespace stfs::test {

struct PulledVersion {
  std::uint64_t number;
  std::optional<std::uint64_t> base;  // nothing: it is full
  sync::DiffEncoding encoding = sync::DiffEncoding::Xor;
  PulledLayout layout = PulledLayout::First;
};

struct PullScenario {
  std::string_view name;
  std::vector<PulledVersion> versions;
  /// The host has the files of version 0, and no state.
  bool has_model = false;
};

const std::vector<PullScenario>& pull_scenarios();

struct PullCounts {
  std::uint64_t states = 0;
  std::uint64_t in_recovery = 0;  // states after another crash, before all was well again
  std::uint64_t losses = 0;       // of power; the other states are those of kill -9
  std::uint64_t seeded = 0;       // versions
  std::uint64_t applied = 0;
  std::uint64_t failed = 0;  // pulls and publishers, by a failing call
};

/// Publishes and pulls the scenario's versions. Then crashes moments of that: one in so many of the changes
/// of the disk, in each by kill -9 and, where the durability promises anything then, by a loss of power.
/// @return what is wrong; nothing if all is well.
std::optional<std::string> run_pulls(const PullScenario& scenario, std::uint64_t seed, std::size_t one_in,
                                     PullCounts& counts);

}  // namespace stfs::test
