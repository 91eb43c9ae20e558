// A small process that ends the mount's connection when the daemon has been killed.
//
// The kernel ends a connection when the daemon's last descriptor of /dev/fuse is closed. A killed daemon may
// keep this descriptor open forever. Then one of its threads is inside a notification and waits for a lock of
// the kernel. A client holds this lock while it waits for a reply, but no thread sends the reply any more
// (fs/KERNEL.md). The daemon, its clients and the mount point hang. The daemon's files are not closed and its
// pidfds do not become ready, but the kernel tells the children of a thread that the thread has ended
// (PR_SET_PDEATHSIG in prctl(2)). The guard is such a child, of the main thread.
//
// The guard is the same program, started with another name. The guard has none of the daemon's descriptors
// and memory, it has its own session, and all of its signals are blocked. It sleeps until the daemon ends. If
// the guard is killed, the daemon continues without a guard. With -o auto_unmount the guard also unmounts the
// dead mount.
#pragma once

#include <sys/types.h>

#include "fs/mount/options.h"
#include "fs/mount/own_mount.h"

namespace stfs {

class Guard {
 public:
  /// Starts the guard of this mount. Call on the thread that lives as long as the process, in the mount
  /// namespace of the mount. If the guard cannot be started, the failure is logged and the mount still works.
  Guard(const OwnMount& mount, const Options& options);
  /// Ends the guard. The connection must have ended.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// True if this process was started as a guard. Then main() only returns the result of run().
  static bool is_guard(int argc, const char* const* argv);
  static int run(const char* const* argv);

 private:
  pid_t pid_ = -1;  // -1: no guard is running
};

}  // namespace stfs
