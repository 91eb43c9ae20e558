// A workload, run once and remembered moment by moment, and the judgement of what recovery makes of a crash.
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
  std::size_t promised = 0;  // so many steps' commits have returned success
  std::size_t begun = 0;     // so many steps have begun
};

/// Every moment of a workload without a crash, the beginning included.
struct History {
  const Workload* workload = nullptr;
  std::vector<Content> contents;  // after 0, 1, ... steps
  std::vector<Moment> moments;
  std::optional<std::string> failure;  // a step failed that had no reason to
};

/// @param lies  calls that the storage pretends to have done.
History record(const Workload& workload, const std::vector<SeamCall>& lies = {});

/// How many states were seen.
struct CrashCounts {
  std::uint64_t states = 0;
  std::uint64_t in_recovery = 0;  // of those, crashes while an earlier crash was being recovered
  std::uint64_t deepest = 0;      // crashes in a row
  std::uint64_t follow_ups = 0;   // states after which one more commit was made

  CrashCounts& operator+=(const CrashCounts& other);
};

/// Crashes somewhere in the history as `choices` says, recovers (and crashes in the recovery now and then),
/// and looks at what is left. @return what is wrong: "LOST: ...", "TORN: ...", or why recovery failed.
std::optional<std::string> crash_once(const History& history, Choices& choices, CrashCounts& counts,
                                      const std::vector<SeamCall>& lies = {});

/// Every choice of whole blocks, sizes and names that a loss of power can make, at every moment of the
/// history, as far as there are not too many.
/// @param seed  of the crashes in recovery.
std::optional<std::string> crash_every_way(const History& history, CrashCounts& counts,
                                           std::uint64_t seed = 0);

/// Recovers in this state, which a crash at that moment has left, and looks at what is left.
/// @param was_killed  the processes were, and the power is still there: it is cut during recovery more often
/// then.
std::optional<std::string> judge(const History& history, const Moment& moment, const DiskImage& crashed,
                                 bool was_killed, Choices& choices, CrashCounts& counts,
                                 const std::vector<SeamCall>& lies = {});

}  // namespace stfs::test
