// Runs the explorations of crash_tests with other seeds and for any time. mutants.py runs this program.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/crash_run.h"
#include "tests/crash/edit_hosts_run.h"
#include "tests/crash/edit_run.h"
#include "tests/crash/edit_sequence.h"
#include "tests/crash/fault_run.h"
#include "tests/crash/group_run.h"
#include "tests/crash/hosts_run.h"
#include "tests/crash/journal_check.h"
#include "tests/crash/pull_run.h"

namespace stfs::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> kinds = {"crashes"};
  std::uint64_t states = 1'000'000;
  std::uint64_t seed = 0;
  std::uint64_t seconds = 0;  // 0: no limit
  std::string workload;       // empty: all
  bool traces = false;
  std::uint64_t steps = 2000;
  std::string directory;  // empty: nothing is written
};

/// The name of the groups of edges for --workload.
constexpr std::string_view kGroups = "groups";

/// Runs everything that one seed decides; adds to the number of states.
using Round = std::optional<std::string> (*)(const Options& options, std::uint64_t seed,
                                             std::uint64_t& states);

std::string about(std::string_view name, const std::string& wrong) {
  return std::string(name) + ": " + wrong;
}

std::optional<std::string> crash_all(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  static const std::vector<History> histories = [&] {
    std::vector<History> list;
    for (const Workload& workload : workloads()) {
      if (options.workload.empty() || options.workload == workload.name) list.push_back(record(workload));
    }
    return list;
  }();
  for (const History& history : histories) {
    // A large archive takes long, so only one seed in twenty runs it.
    if (history.workload->archive == &large_archive() && seed % 20 != 0 && options.workload.empty()) continue;
    RandomChoices choices(seed);
    CrashCounts counts;
    auto wrong = history.failure ? history.failure : crash_once(history, choices, counts);
    states += counts.states;
    if (wrong) return wrong;
  }
  return std::nullopt;
}

std::optional<std::string> crash_random(const Options&, std::uint64_t seed, std::uint64_t& states) {
  constexpr int kCrashes = 20;
  const Workload workload = random_workload(seed);
  const History history = record(workload);
  if (history.failure) return history.failure;
  const DiskImage& end = history.moments.back().image;
  if (!end.has_content(end.inode_at(kArchivePath), history.contents.back())) return "not what was written";
  RandomChoices choices(seed);
  for (int times = 0; times < kCrashes; ++times) {
    CrashCounts counts;
    if (auto wrong = crash_once(history, choices, counts)) return wrong;
    states += counts.states;
  }
  return std::nullopt;
}

/// Runs one workload; the seed chooses it in turn.
std::optional<std::string> crash_every(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  std::vector<const Workload*> list;
  for (const Workload& workload : workloads()) {
    if (workload.archive != &small_archive() || workload.durability != Durability::Power) continue;
    if (options.workload.empty() || options.workload == workload.name) list.push_back(&workload);
  }
  if (list.empty()) return std::nullopt;
  // Begins with the workloads with kept journals, because their crashes are the most complex.
  const Workload& workload = *list[list.size() - 1 - seed % list.size()];
  CrashCounts counts;
  const auto wrong = crash_every_way(record(workload), counts, seed / list.size());
  states += counts.states;
  return wrong;
}

std::optional<std::string> fault_any(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  constexpr std::size_t kMostCalls = 120;
  RandomChoices choices(seed);
  const Workload& any = workloads()[choices.below(workloads().size())];
  const Workload& workload = options.workload.empty() ? any : stfs::test::workload(options.workload);
  const FaultKind& kind = fault_kinds()[choices.below(fault_kinds().size())];
  Ordeal ordeal = kind.ordeal;
  ordeal.finds_journal = workload.steps.size() > 1 && choices.one_in(3);
  ordeal.fault.nth = static_cast<unsigned>(1 + choices.below(ordeal.fault.kind ? 4 : kMostCalls));
  const OrdealReport report = endure(workload, ordeal, seed);
  states += report.crashes;
  if (!report.wrong) return std::nullopt;
  return about(workload.name, about(kind.name, about(report.hit, *report.wrong)));
}

std::optional<std::string> crash_groups_in(GroupWorld world, std::uint64_t seed, std::uint64_t& states) {
  constexpr std::uint64_t kRuns = 50;
  GroupCounts counts;
  std::optional<std::string> wrong;
  for (std::uint64_t run = 0; run < kRuns && !wrong; ++run)
    wrong = run_groups(seed * kRuns + run, counts, world);
  states += counts.states;
  return wrong;
}

std::optional<std::string> schedule(const std::vector<HostsScenario>& scenarios, const Options& options,
                                    std::uint64_t seed, std::uint64_t& states) {
  for (const HostsScenario& scenario : scenarios) {
    if (!options.workload.empty() && options.workload != scenario.name) continue;
    HostsCounts counts;
    const auto wrong = run_hosts(scenario, seed, counts, options.traces ? &std::cout : nullptr);
    states += counts.states();
    if (wrong) return about(scenario.name, *wrong);
  }
  return std::nullopt;
}

std::optional<std::string> schedule_hosts(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  return schedule(hosts_scenarios(), options, seed, states);
}

std::optional<std::string> schedule_edges(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  auto wrong = schedule(edge_scenarios(), options, seed, states);
  if (wrong || (!options.workload.empty() && options.workload != kGroups)) return wrong;
  return crash_groups_in(GroupWorld::Edges, seed, states);
}

std::optional<std::string> bend_journals(const Options&, std::uint64_t seed, std::uint64_t& states) {
  constexpr int kJournals = 50;
  if (seed == 0) {
    for (const auto check : {check_every_byte, check_forged_records, check_identities}) {
      if (auto wrong = check()) return wrong;
    }
  }
  RandomChoices random(seed);
  for (int times = 0; times < kJournals; ++times, ++states) {
    Content script(1 + random.below(40));
    for (std::byte& byte : script) byte = static_cast<std::byte>(random.below(256));
    const MadeJournal made = make_journal(script);
    if (auto wrong = check_journal(made.bytes, made.is_forged)) return wrong;
  }
  return std::nullopt;
}

std::optional<std::string> crash_groups(const Options&, std::uint64_t seed, std::uint64_t& states) {
  return crash_groups_in(GroupWorld::Simple, seed, states);
}

std::optional<std::string> crash_edits(const Options&, std::uint64_t seed, std::uint64_t& states) {
  constexpr std::uint64_t kCrashes = 60;
  EditCounts counts;
  auto wrong = run_edits(seed, kCrashes, counts);
  if (!wrong && seed % 4 == 0) wrong = fail_edits(seed, counts);
  states += counts.states;
  return wrong;
}

std::optional<std::string> schedule_edits(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  for (const EditHostsScenario& scenario : edit_hosts_scenarios()) {
    if (!options.workload.empty() && options.workload != scenario.name) continue;
    EditHostsCounts counts;
    const auto wrong = run_edit_hosts(scenario, seed, counts, options.traces ? &std::cout : nullptr);
    states += counts.judged.states;
    if (wrong) return about(scenario.name, *wrong);
  }
  return std::nullopt;
}

std::optional<std::string> go_on_for_long(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  for (const SequenceScenario& scenario : sequence_scenarios()) {
    if (!options.workload.empty() && options.workload != scenario.name) continue;
    SequenceCounts counts;
    // Takes about the same number of states from each sequence.
    const SequenceRecord record{options.directory, static_cast<std::size_t>(8 + options.steps / 400)};
    if (auto wrong = run_sequence(scenario, seed, options.steps, counts, record))
      return about(scenario.name, *wrong);
    std::cout << scenario.name << ": " << counts << std::endl;
    states += counts.judged.states;
  }
  return std::nullopt;
}

/// Crashes after every change of the disk.
std::optional<std::string> crash_pulls(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  for (const PullScenario& scenario : pull_scenarios()) {
    if (!options.workload.empty() && options.workload != scenario.name) continue;
    PullCounts counts;
    const auto wrong = run_pulls(scenario, seed, 1, counts);
    states += counts.states;
    if (wrong) return about(scenario.name, *wrong);
  }
  return std::nullopt;
}

struct Kind {
  std::string_view name;
  Round round;
};
constexpr Kind kKinds[] = {
    {"crashes", crash_all},         {"random", crash_random},  {"choices", crash_every},
    {"faults", fault_any},          {"hosts", schedule_hosts}, {"edges", schedule_edges},
    {"journals", bend_journals},    {"groups", crash_groups},  {"edits", crash_edits},
    {"edit-hosts", schedule_edits}, {"pulls", crash_pulls},    {"sequences", go_on_for_long}};

void print(const Options& options, std::uint64_t states, Clock::time_point start, std::uint64_t next_seed) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
  for (const std::string& kind : options.kinds) std::cout << kind << " ";
  std::cout << states << " states, 0 torn, 0 lost, " << seconds << " s; the next seed is " << next_seed
            << std::endl;
}

std::optional<std::string> run_round(const Options& options, std::uint64_t seed, std::uint64_t& states) {
  for (const Kind& kind : kKinds) {
    if (std::ranges::find(options.kinds, kind.name) == options.kinds.end()) continue;
    if (auto wrong = kind.round(options, seed, states)) return about(kind.name, *wrong);
  }
  return std::nullopt;
}

int explore(const Options& options) {
  const auto start = Clock::now();
  auto next_report = start + std::chrono::minutes(1);
  std::uint64_t states = 0;
  std::uint64_t seed = options.seed;
  while (states < options.states) {
    const std::uint64_t before = states;
    if (const auto wrong = run_round(options, seed, states)) {
      std::cout << "seed " << seed << ": " << *wrong << std::endl;
      return 1;
    }
    ++seed;
    if (states == before && !options.workload.empty()) break;
    const auto now = Clock::now();
    if (options.seconds != 0 && now - start >= std::chrono::seconds(options.seconds)) break;
    if (now < next_report) continue;
    next_report = now + std::chrono::minutes(1);
    print(options, states, start, seed);
  }
  print(options, states, start, seed);
  return 0;
}

}  // namespace
}  // namespace stfs::test

int main(int argc, char** argv) {
  stfs::test::Options options;
  CLI::App app(
      "Crashes commits on a model of a disk, recovers, and looks at what is left.\n\n"
      "A failure prints its seed: the same --kind and --workload with --seed SEED --states 1 replay it.\n"
      "Exit status: 0 all was well, 1 something was torn, lost or left behind, 2 wrong usage.",
      "crash_explorer");
  std::vector<std::string> kinds;
  for (const auto& kind : stfs::test::kKinds) kinds.emplace_back(kind.name);
  app.add_option("--kind", options.kinds, "what to do; may be repeated")
      ->check(CLI::IsMember(kinds))
      ->capture_default_str();
  app.add_option("--states", options.states, "stop after so many states")->capture_default_str();
  app.add_option("--seed", options.seed, "begin with this seed")->capture_default_str();
  app.add_option("--seconds", options.seconds, "stop after so long; 0: never")->capture_default_str();
  app.add_option("--workload", options.workload,
                 "only the workload, or the scenario of hosts, edges (or its groups), edit-hosts, pulls or "
                 "sequences, of that name");
  app.add_option("--steps", options.steps, "edits and patches of each of the sequences")
      ->capture_default_str();
  app.add_option("--keep", options.directory,
                 "write some crash states of sequences, and the last model, into this directory");
  app.add_flag("--trace", options.traces, "print every call of hosts, edges and edit-hosts");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return stfs::test::explore(options);
}
