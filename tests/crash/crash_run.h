// Runs a workload once and records each moment, then crashes at moments and judges the recovered archive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/workload.h"
#include "tests/support/disk_crash.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

/// The disk after one change of it.
struct Moment {
  std::string_view what;
  DiskImage image;
  std::size_t promised = 0;  // the number of steps whose commits have returned success
  std::size_t begun = 0;     // the number of steps that have begun
};

/// Every moment of a workload without a crash, with the beginning.
struct History {
  const Workload* workload = nullptr;
  std::vector<Content> contents;  // after 0, 1, ... steps
  std::vector<Moment> moments;
  std::optional<std::string> failure;  // a step failed without a reason
};

/// @param lies  calls that the storage pretends to have done.
History record(const Workload& workload, const std::vector<SeamCall>& lies = {});

/// Counts the judged states.
struct CrashCounts {
  std::uint64_t states = 0;
  std::uint64_t in_recovery = 0;  // of these, after a crash during the recovery of an earlier crash
  std::uint64_t deepest = 0;      // crashes in a row
  std::uint64_t follow_ups = 0;   // states after which one more commit was made

  CrashCounts& operator+=(const CrashCounts& other);
};

/// Crashes at a moment of the history that `choices` picks, recovers (and sometimes crashes in the recovery),
/// and checks the result. @return the mistake: "LOST: ...", "TORN: ...", or why recovery failed.
std::optional<std::string> crash_once(const History& history, Choices& choices, CrashCounts& counts,
                                      const std::vector<SeamCall>& lies = {});

/// Tries every choice of whole blocks, sizes and names that a loss of power can make, at every moment of the
/// history, up to a limit for each moment.
/// @param seed  of the crashes in recovery.
std::optional<std::string> crash_every_way(const History& history, CrashCounts& counts,
                                           std::uint64_t seed = 0);

/// Recovers in this state, which a crash at that moment has left, and checks the result.
/// @param was_killed  the crash was a kill without a loss of power. Then recovery crashes more often.
std::optional<std::string> judge(const History& history, const Moment& moment, const DiskImage& crashed,
                                 bool was_killed, Choices& choices, CrashCounts& counts,
                                 const std::vector<SeamCall>& lies = {});

}  // namespace stfs::test
