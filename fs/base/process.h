// Tells which process a thread belongs to, and how a thread that closes a file is ending.
//
// The kernel names the caller of a request by its thread. It names no thread (0) where the caller lives in a
// pid namespace that this one does not contain.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace stfs {

/// The process of a thread, also where /proc hides it (hidepid in proc(5)). The thread itself where it is
/// gone; 0 for 0.
pid_t process_of(pid_t thread);

/// True where a process of that id exists, ended ones that nobody has waited for included.
bool is_alive(pid_t process);

/// How a thread that closes a file goes on.
enum class Ending : std::uint8_t {
  Closes,  // it lives, its process exits or calls exec, or nothing is known of it
  Killed,  // a signal ends its process: the kernel's clean-up closes, not the program
  Untold,  // its process ends, and this mount may not read whether by an exit or by a signal
  Hidden,  // it is there, and /proc hides whether it lives, exits, or is killed
};

/// What /proc says of a thread.
struct ThreadEnd {
  bool is_ending = false;       // PF_EXITING
  bool was_signaled = false;    // PF_SIGNALED
  int exit_code = 0;            // as wait(2) has it; 0 also where it must not be read
  bool has_code = false;        // the exit code may be read: this process may look into that one (ptrace(2))
  bool another_exited = false;  // a thread of the same process ends without PF_SIGNALED
};

/// The exit code decides where it may be read. PF_SIGNALED does not: exit_group(2) sends SIGKILL to all other
/// threads of its process, so each of them has the flag, and the last one closes the files. But the thread
/// that called exit_group has no flag, while a signal gives the flag to every thread.
Ending ending_of(const ThreadEnd& end);

/// Closes for a thread that is gone, and where /proc is that of another pid namespace.
Ending ending_of(pid_t thread);

}  // namespace stfs
