// The programs that use a simulated mount, in place of the processes in /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>

#include "fs/base/process.h"

namespace stfs::test {

/// The facts that the driver can learn about a process.
struct SimulatedProcess {
  bool is_alive = true;
  Ending ending = Ending::Closes;
};

/// Processes by number. Threads of process N have the numbers N and N + kThreads.
using ProcessTable = std::map<pid_t, SimulatedProcess>;
inline constexpr pid_t kThreads = 1 << 20;

/// Sets the table that the driver sees; null: there are no processes.
void show_processes(const ProcessTable* table);

}  // namespace stfs::test
