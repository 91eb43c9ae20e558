// Weight sync on the model of a disk: training publishes versions, a host pulls them, and both crash at any
// moment.
//
// After a crash and an opening, the model is bit for bit one version, not older than the last version that a
// pull has reported, and the sync state names this version. Before the first report there may be no version:
// then the model is the host's own, the first version, or missing. The next pull brings the model to the
// newest whole version, and leaves no other files in its directory. This holds after kill -9, and with
// durability Power also after a loss of power.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/crash/pulled_model.h"
#include "tools/sync/version_format.h"

namespace stfs::test {

struct PulledVersion {
  std::uint64_t number;
  std::optional<std::uint64_t> base;  // nothing: a full version
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
  std::uint64_t in_recovery = 0;  // states after another crash, before the host had recovered
  std::uint64_t losses = 0;       // states after a loss of power; the others are after kill -9
  std::uint64_t seeded = 0;       // full versions that were pulled
  std::uint64_t applied = 0;
  std::uint64_t failed = 0;  // pulls and publishers in which a call failed
};

/// Publishes and pulls the scenario's versions. Then crashes after one in so many changes of the disk: by
/// kill -9 and, with durability Power, by a loss of power.
/// @return the mistake, if any.
std::optional<std::string> run_pulls(const PullScenario& scenario, std::uint64_t seed, std::size_t one_in,
                                     PullCounts& counts);

}  // namespace stfs::test
