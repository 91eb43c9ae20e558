// Finds out which process a thread is in, and how a thread that closes a file is ending.
//
// The kernel names the caller of a request by its thread. The thread is 0 if the caller is in a pid namespace
// that this process's namespace does not contain.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace stfs {

/// The process of every thread that /proc hides (hidepid in proc(5)): all hidden processes look like one.
inline constexpr pid_t kHiddenProcess = -1;

/// Returns the process of a thread. Returns the thread's own id if the thread does not exist any more, and 0
/// for 0.
pid_t process_of(pid_t thread);

/// True if a process of this id exists. A process that has ended exists until its parent has waited for it.
/// True for kHiddenProcess, which may be alive.
bool is_alive(pid_t process);

/// The state of a thread that closes a file.
enum class Ending : std::uint8_t {
  Closes,  // the thread is alive, its process exits or calls exec, or the thread is unknown
  Killed,  // a signal ends its process: the kernel's clean-up closes the file, not the program
  Untold,  // its process ends, and this mount may not read if by an exit or a signal
  Hidden,  // the thread exists, and /proc hides if it is alive, exits, or is killed
};

/// The facts in /proc about a thread.
struct ThreadEnd {
  bool is_ending = false;     // PF_EXITING
  bool was_signaled = false;  // PF_SIGNALED
  int exit_code = 0;          // encoded as in wait(2); also 0 if this process may not read it
  bool has_code = false;      // this process may read the exit code: it has the right to ptrace(2) the other
  bool another_exited = false;  // a thread of the same process ends without PF_SIGNALED
};

/// The exit code decides if it may be read. PF_SIGNALED alone does not decide: exit_group(2) sends SIGKILL to
/// all other threads of its process, so each of them has the flag, and the last thread closes the files. But
/// the thread that called exit_group has no flag, while a signal sets the flag of every thread.
Ending ending_of(const ThreadEnd& end);

/// Returns Closes for a thread that does not exist any more, and also if /proc is of another pid namespace.
/// Returns Hidden for kHiddenProcess.
Ending ending_of(pid_t thread);

}  // namespace stfs
