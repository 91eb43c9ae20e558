// What became of a process that closes a file.
#pragma once

#include <sys/types.h>

namespace stfs {

/// True where the thread is being ended by a signal right now: the close that it sends comes from the
/// kernel's clean-up, not from the program, so what it wrote is half done. From the flag PF_SIGNALED in
/// /proc/PID/stat (linux/sched.h); false where that can't be read, as for a pid of another namespace.
bool is_killed_by_signal(pid_t thread);

/// True where `thread` lives, and in another process than `closer` does.
bool lives_elsewhere(pid_t thread, pid_t closer);

}  // namespace stfs
