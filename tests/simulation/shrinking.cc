// Simulates a seed, and shortens a plan that fails.
#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "tests/simulation/simulation.h"

namespace stfs::test {
namespace {

std::string hint;

}  // namespace

Plan shrink(Plan plan) {
  const auto is_wrong = [](const Plan& part) {
    SimulationCounts counts;
    return !simulate(part, counts).empty();
  };
  // Leaves out shorter and shorter runs of operations, as long as the plan still fails.
  for (std::size_t run = plan.operations.size() / 2; run > 0; run /= 2) {
    for (std::size_t at = 0; at + run <= plan.operations.size();) {
      Plan part = plan;
      const auto begin = part.operations.begin() + static_cast<std::ptrdiff_t>(at);
      part.operations.erase(begin, begin + static_cast<std::ptrdiff_t>(run));
      if (is_wrong(part)) {
        plan = std::move(part);
      } else {
        at += run;
      }
    }
  }
  for (std::size_t at = 0; at < plan.operations.size(); ++at) {
    if (plan.operations[at].fault) {
      Plan part = plan;
      part.operations[at].fault.reset();
      if (is_wrong(part)) plan = std::move(part);
    }
    for (std::size_t other = 0; other < plan.operations[at].meanwhile.size();) {
      Plan part = plan;
      auto& meanwhile = part.operations[at].meanwhile;
      meanwhile.erase(meanwhile.begin() + static_cast<std::ptrdiff_t>(other));
      if (is_wrong(part)) {
        plan = std::move(part);
      } else {
        ++other;
      }
    }
  }
  return plan;
}

const std::string& replay_hint() {
  return hint;
}

std::string simulate_seed(std::uint64_t seed, std::size_t operations, SimulationCounts& counts) {
  const Plan plan = random_plan(seed, operations);
  hint = fmt::format("replay: simulate --seed {} --operations {}", seed, operations);
  const std::string wrong = simulate(plan, counts);
  if (wrong.empty()) return {};
  const Plan shortest = shrink(plan);
  SimulationCounts ignored;
  std::ostringstream trace;
  const std::string of_shortest = simulate(shortest, ignored, &trace);
  std::string text = fmt::format("seed {}: {}\n{}\nthe shortest sequence, {} operations: {}\n{}", seed, wrong,
                                 hint, shortest.operations.size(), of_shortest, trace.str());
  return text;
}

}  // namespace stfs::test
