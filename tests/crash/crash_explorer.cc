// Crash states without end: what crash_tests does for a minute, for as long as one likes.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "tests/crash/crash_run.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Limits {
  std::uint64_t states = 1'000'000;
  std::uint64_t seed = 0;
  std::uint64_t seconds = 0;  // 0: none
  std::string workload;       // all, without it
};

std::vector<stfs::test::History> histories_of(const std::string& name) {
  std::vector<stfs::test::History> histories;
  for (const auto& workload : stfs::test::workloads()) {
    if (name.empty() || name == workload.name) histories.push_back(stfs::test::record(workload));
  }
  return histories;
}

void print(const stfs::test::CrashCounts& counts, Clock::time_point start, std::uint64_t next_seed) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
  std::cout << counts.states << " states, " << counts.in_recovery << " of them crashes during recovery, "
            << counts.follow_ups << " with another commit afterwards, 0 torn, 0 lost, " << seconds
            << " s; the next seed is " << next_seed << std::endl;
}

int explore(const Limits& limits) {
  const std::vector<stfs::test::History> histories = histories_of(limits.workload);
  if (histories.empty()) {
    std::cerr << "crash_explorer: no workload \"" << limits.workload << "\"; there are:\n";
    for (const auto& workload : stfs::test::workloads()) std::cerr << "  " << workload.name << "\n";
    return 2;
  }
  const auto start = Clock::now();
  auto next_report = start + std::chrono::minutes(1);
  stfs::test::CrashCounts counts;
  std::uint64_t seed = limits.seed;
  for (; counts.states < limits.states; ++seed) {
    for (const auto& history : histories) {
      stfs::test::RandomChoices choices(seed);
      const auto wrong = history.failure ? history.failure : crash_once(history, choices, counts);
      if (!wrong) continue;
      std::cout << "seed " << seed << ": " << *wrong << "\nReplay: crash_explorer --workload '"
                << history.workload->name << "' --seed " << seed << " --states 1" << std::endl;
      return 1;
    }
    if ((seed & 0xffU) != 0) continue;
    const auto now = Clock::now();
    if (limits.seconds != 0 && now - start >= std::chrono::seconds(limits.seconds)) break;
    if (now < next_report) continue;
    next_report = now + std::chrono::minutes(1);
    print(counts, start, seed + 1);
  }
  print(counts, start, seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Limits limits;
  CLI::App app("Crashes commits on a model of a disk, recovers, and looks at what is left. Exit status: 0 all was "
               "well, 1 a state was torn or lost (its seed is printed), 2 wrong usage.",
               "crash_explorer");
  app.add_option("--states", limits.states, "stop after so many states")->capture_default_str();
  app.add_option("--seed", limits.seed, "begin with this seed")->capture_default_str();
  app.add_option("--seconds", limits.seconds, "stop after so long; 0: never")->capture_default_str();
  app.add_option("--workload", limits.workload, "only this one");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return explore(limits);
}
