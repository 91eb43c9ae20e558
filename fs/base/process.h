// Tells which process a thread belongs to, and how a thread that closes a file is ending.
//
// The kernel names the caller of a request by its thread. It gives 0 for the thread if the caller lives in a
// pid namespace that this process's namespace does not contain.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace stfs {

/// The process of every thread that /proc hides (hidepid in proc(5)): all hidden processes look like one.
inline constexpr pid_t kHiddenProcess = -1;

/// Returns the process of a thread. Returns the thread's own id if the thread is gone, and 0 for 0.
pid_t process_of(pid_t thread);

/// True if a process of that id exists. A process that has ended counts until its parent has waited for it.
/// True for kHiddenProcess: it may live.
bool is_alive(pid_t process);

/// What happens to a thread that closes a file.
enum class Ending : std::uint8_t {
  Closes,  // the thread lives, its process exits or calls exec, or nothing is known of the thread
  Killed,  // a signal ends its process: the kernel's clean-up closes the file, not the program
  Untold,  // its process ends, and this mount may not read whether an exit or a signal ends it
  Hidden,  // the thread exists, and /proc hides whether it lives, exits, or is killed
};

/// What /proc says about a thread.
struct ThreadEnd {
  bool is_ending = false;     // PF_EXITING
  bool was_signaled = false;  // PF_SIGNALED
  int exit_code = 0;          // encoded as in wait(2); also 0 if this process may not read it
  bool has_code = false;      // this process may read the exit code: it has the right to ptrace(2) the other
  bool another_exited = false;  // a thread of the same process ends without PF_SIGNALED
};

/// The exit code decides if it may be read. PF_SIGNALED alone does not decide: exit_group(2) sends SIGKILL to
/// all other threads of its process, so each of them has the flag, and the last thread closes the files. But
/// the thread that called exit_group has no flag, while a signal gives the flag to every thread.
Ending ending_of(const ThreadEnd& end);

/// Returns Closes for a thread that is gone, and also if /proc belongs to another pid namespace. Returns
/// Hidden for kHiddenProcess.
Ending ending_of(pid_t thread);

}  // namespace stfs
