// The driver on the model of a disk, from the archive to the handlers, without its threads: what they do is
// done when it is asked for.
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
  /// Mounts it for the kernel. @throw std::runtime_error where it can't be opened.
  /// @param is_shared  with allow_other: other users may enter, as far as modes and owners let them.
  MountedArchive(DiskModel& disk, Kernel& kernel, Interceptor& interceptor, std::string path, bool is_shared);
  /// Unmounts. The descriptors must have gone, or the mount was killed.
  ~MountedArchive();
  MountedArchive(const MountedArchive&) = delete;
  MountedArchive& operator=(const MountedArchive&) = delete;

  /// Journals are named in the same order from here on.
  static void begin_ids();

  /// kill -9.
  void kill();
  [[nodiscard]] bool is_dead() const { return process_->is_dead(); }
  /// The invalidator does the next thing. @return false where there is none.
  bool invalidate() { return invalidator_->do_next(); }
  /// The watcher looks at the archive. @return false where it wants to look again.
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
  SlowRequests slow_;  // like the next one, runs all requests on the caller's thread
  SlowRequests checksums_;
  std::unique_ptr<Follower> follower_;
  std::size_t files_ = 0;  // that are watched
};

}  // namespace stfs::test
