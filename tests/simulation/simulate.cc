// Simulates as simulation_tests does, with any seeds and any number of operations.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "tests/simulation/simulation.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Simulates mounts, kernels, programs and crashes, and compares what they show with a model in memory.");
  std::uint64_t seed = 0;
  std::uint64_t operations = 0;
  std::uint64_t all = 0;
  bool traces = false;
  app.add_option("--seed", seed, "The first one")->capture_default_str();
  app.add_option("--operations", operations, "Operations of each seed")->default_val(200);
  app.add_option("--all", all, "Operations in all: seed after seed; 0: one seed")->default_val(0);
  app.add_flag("--trace", traces, "Tell each operation of one seed");
  CLI11_PARSE(app, argc, argv);
  std::set_terminate([] {
    std::cerr << stfs::test::replay_hint() << std::endl;
    std::abort();
  });
  using namespace stfs::test;
  SimulationCounts counts;
  const auto began = std::chrono::steady_clock::now();
  std::string wrong;
  if (traces) {
    wrong = simulate(random_plan(seed, operations), counts, &std::cout);
  } else {
    do wrong = simulate_seed(seed++, operations, counts);
    while (wrong.empty() && counts.operations < all);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cout << wrong << counts.operations << " operations, " << counts.requests << " requests, "
            << counts.commits << " commits, " << counts.mounts << " mounts, " << counts.power_losses
            << " losses of power, " << counts.faults << " faults, " << counts.checks << " reads checked, "
            << took.count() << " s\n";
  return wrong.empty() ? 0 : 1;
}
