// A running mount: from mounting to the last reply.
#pragma once

#include <filesystem>
#include <memory>

#include "core/base/error.h"
#include "fs/model/mount_root.h"
#include "fs/mount/mount_point.h"
#include "fs/mount/options.h"

namespace stfs {

class Session {
 public:
  /// Mounts. Requests wait until serve(). No thread is started yet, so the process may still fork.
  /// @param source  the source's name in the kernel's table of mounts.
  static Result<std::unique_ptr<Session>> mount(MountRoot& mount_root, const std::filesystem::path& source,
                                                const MountPoint& point, const Options& options);
  /// Unmounts if it is still mounted.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Goes to the background: the parent process exits with 0, and the log goes to syslog.
  Result<void> go_to_background();
  /// Serves requests until the unmount. SIGINT, SIGTERM and SIGHUP unmount. Running commits are finished.
  /// Content that is only staged is dropped and logged.
  Result<void> serve();

 private:
  struct Parts;
  explicit Session(std::unique_ptr<Parts> parts);
  static void leave_mount_point(const Parts& parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace stfs
