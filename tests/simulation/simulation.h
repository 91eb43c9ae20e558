// A whole mount in memory: the handlers, the file system and the store below them, on the model of a disk,
// under the model of a kernel, with programs that use it and others that change the archive beside it.
//
// One thread does all of it. What goes on at the same time is done in the middle of something else: at its
// calls on the storage, and where it waits. A call that would wait for a lock then is one that waits for the
// disk of somebody else, which no reader may (fs/model/filesystem.h): the simulation ends with it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "tests/simulation/plan.h"

namespace stfs::test {

struct SimulationCounts {
  std::uint64_t operations = 0;  // also those that came into others
  std::uint64_t requests = 0;
  std::uint64_t commits = 0;
  std::uint64_t mounts = 0;
  std::uint64_t power_losses = 0;
  std::uint64_t faults = 0;  // calls on the storage that failed
  std::uint64_t checks = 0;  // of bytes that were read
};

/// One at a time in a program.
/// @param trace  told of each operation; may be null.
/// @return what was wrong; empty where nothing was.
std::string simulate(const Plan& plan, SimulationCounts& counts, std::ostream* trace = nullptr);

/// The shortest part of the plan that is found to be wrong in any way.
Plan shrink(Plan plan);

/// The same, of a seed: on a failure, how to replay it and the shortest sequence.
std::string simulate_seed(std::uint64_t seed, std::size_t operations, SimulationCounts& counts);

/// How to replay what simulate_seed() is at.
const std::string& replay_hint();

}  // namespace stfs::test
