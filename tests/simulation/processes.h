// The programs that use a simulated mount, in place of those in /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>

#include "fs/base/process.h"

namespace stfs::test {

/// What the driver can learn of a process.
struct SimulatedProcess {
  bool is_alive = true;
  Ending ending = Ending::Closes;
};

/// By number. Threads of process N have the numbers N and N + kThreads.
using ProcessTable = std::map<pid_t, SimulatedProcess>;
inline constexpr pid_t kThreads = 1 << 20;

/// That the driver sees; null: nobody.
void show_processes(const ProcessTable* table);

}  // namespace stfs::test
