// A whole mount in memory: the handlers, the file system and the store below them, on the model of a disk,
// under the model of a kernel, with programs that use it and others that change the archive beside it.
//
// One thread does everything. An operation runs in the course of another one: at its calls on the storage,
// and where it waits. If a call has to wait for a lock then, it waits for another call's disk access. No
// reader may do that (fs/model/mounted_model.h): the simulation fails.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "tests/simulation/plan.h"

namespace stfs::test {

struct SimulationCounts {
  std::uint64_t operations = 0;  // also those in the course of others
  std::uint64_t requests = 0;
  std::uint64_t commits = 0;
  std::uint64_t mounts = 0;
  std::uint64_t power_losses = 0;
  std::uint64_t faults = 0;  // calls on the storage that failed
  std::uint64_t checks = 0;  // of bytes that were read
};

/// Only one simulation may run at a time in a program.
/// @param trace  gets each operation; may be null.
/// @return what was wrong, or an empty string.
std::string simulate(const Plan& plan, SimulationCounts& counts, std::ostream* trace = nullptr);

/// Returns the shortest part of the plan that still fails in any way.
Plan shrink(Plan plan);

/// Simulates the plan of a seed. After a failure, the result says how to replay it, and has the shortest
/// sequence.
std::string simulate_seed(std::uint64_t seed, std::size_t operations, SimulationCounts& counts);

/// Returns the command that replays the present simulate_seed().
const std::string& replay_hint();

}  // namespace stfs::test
