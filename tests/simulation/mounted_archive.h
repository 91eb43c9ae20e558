// The driver on the model of a disk, from the archive to the handlers. There are no threads of the driver:
// their work is done on request.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fs/follow/follower.h"
#include "fs/kernel/fuse_ops.h"
#include "tests/simulation/kernel.h"
#include "tests/support/disk_model.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

class MountedArchive {
 public:
  /// Mounts the archive for the kernel. @throw std::runtime_error if it can't be opened.
  /// @param is_shared  has the effect of allow_other: other users may enter, if modes and owners allow it.
  MountedArchive(DiskModel& disk, Kernel& kernel, Interceptor& interceptor, std::string path, bool is_shared);
  /// Unmounts. The file descriptors must be closed, or the mount killed.
  ~MountedArchive();
  MountedArchive(const MountedArchive&) = delete;
  MountedArchive& operator=(const MountedArchive&) = delete;

  /// From here on journals get the same names in the same order.
  static void begin_ids();

  /// kill -9.
  void kill();
  [[nodiscard]] bool is_dead() const { return process_->is_dead(); }
  /// Does the invalidator's next work. @return false if there is none.
  bool invalidate() { return invalidator_->do_next(); }
  /// Checks the archive, as the watcher does. @return false if the check must be repeated.
  bool look();
  void tidy() { mount_root_->tidy(); }

 private:
  void change_root(const std::function<void()>& change);

  Kernel& kernel_;
  std::unique_ptr<DiskProcess> process_;
  InterceptedStorage storage_;
  std::unique_ptr<MountRoot> mount_root_;
  std::unique_ptr<Mount> mount_;
  std::unique_ptr<Invalidator> invalidator_;
  SlowRequests slow_;  // as the next two, runs all work on the caller's thread
  SlowRequests names_;
  SlowRequests checksums_;
  std::unique_ptr<Follower> follower_;
  std::size_t files_ = 0;  // number of watched files
};

}  // namespace stfs::test
