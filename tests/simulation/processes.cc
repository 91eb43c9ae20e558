// Replaces fs/base/process.cc at the link.
#include "tests/simulation/processes.h"

namespace stfs {
namespace {

const test::ProcessTable* shown_processes = nullptr;

const test::SimulatedProcess* find(pid_t process) {
  if (shown_processes == nullptr) return nullptr;
  const auto found = shown_processes->find(process_of(process));
  return found == shown_processes->end() ? nullptr : &found->second;
}

}  // namespace

pid_t process_of(pid_t thread) {
  return thread <= 0 ? 0 : thread % test::kThreads;
}

bool is_alive(pid_t process) {
  const auto* found = find(process);
  return found != nullptr && found->is_alive;
}

Ending ending_of(pid_t thread) {
  const auto* found = find(thread);
  return found == nullptr ? Ending::Closes : found->ending;
}

void test::show_processes(const ProcessTable* table) {
  shown_processes = table;
}

}  // namespace stfs
