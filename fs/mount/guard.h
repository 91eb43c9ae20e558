// A small process that ends the mount's connection when the daemon has been killed.
//
// The kernel ends a connection when the daemon's last descriptor of /dev/fuse is closed. A killed daemon may
// keep it open for good: one of its threads is inside a notification and waits for a lock of the kernel,
// which a client holds while it waits for a reply that no thread sends any more (fs/KERNEL.md). Then the
// daemon, its clients and the mount point hang. Its files are not closed and pidfds do not become ready, but
// the kernel tells the children of a thread that it has ended (PR_SET_PDEATHSIG in prctl(2)). The guard is
// such a child, of the main thread.
//
// The guard is the same program, started with another name. It has none of the daemon's descriptors and
// memory, a session of its own, and all signals blocked. It sleeps until the daemon ends. If the guard is
// killed, the daemon goes on without one. With -o auto_unmount it also unmounts the dead mount.
#pragma once

#include <sys/types.h>

#include "fs/mount/options.h"
#include "fs/mount/own_mount.h"

namespace stfs {

class Guard {
 public:
  /// Starts the guard of our mount. Call it on the thread that lives as long as the process, in the mount
  /// namespace of the mount. Without a guard, which the log tells, the mount works all the same.
  Guard(const OwnMount& mount, const Options& options);
  /// Ends the guard. The connection must have ended.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// True if this process was started to be a guard: then main() only returns what run() returns.
  static bool is_guard(int argc, const char* const* argv);
  static int run(const char* const* argv);

 private:
  pid_t pid_ = -1;  // -1: there is no guard
};

}  // namespace stfs
