// FUSE passthrough: the kernel reads a file's bytes from another file's page cache, and sends no requests to
// the mount.
//
// Passthrough has no offset into the other file. Therefore it is used only for `archive.safetensors`, if this
// view equals the archive byte for byte. Passthrough needs libfuse 3.17, kernel 6.9 and CAP_SYS_ADMIN.
#pragma once

#include <fuse_lowlevel.h>

#include <unordered_map>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call. Only ask_for() is not synchronized: call it before the first open().
class Passthrough {
 public:
  /// Checks that this program and this user can use passthrough. ENOTSUP or EPERM, with a message that names
  /// the missing part.
  static Result<void> check_possible();

  /// Call in INIT. False if the kernel does not support passthrough.
  bool ask_for(fuse_conn_info* conn);

  /// Call for the reply to an open. Each success needs one release(). The kernel keeps the file until the
  /// last release().
  /// @return the backing id, or 0 if passthrough is off or was refused. A refusal is permanent: the kernel
  ///         forbids mixing both modes on one inode.
  int open(fuse_req_t req, Ino ino, int descriptor);
  void release(fuse_req_t req, Ino ino);

 private:
  struct Backing {
    int id = 0;
    unsigned opens = 0;
  };
  [[maybe_unused]] bool is_on_ = false;
  Mutex mutex_;  // innermost
  std::unordered_map<Ino, Backing> backings_ GUARDED_BY(mutex_);
  [[maybe_unused]] bool has_failed_ GUARDED_BY(mutex_) = false;
};

}  // namespace stfs
