// Files that the kernel reads in our place (FUSE passthrough): their bytes come from another file's page
// cache, and no request reaches us.
//
// That has no offset, so it fits `archive.safetensors` where that is the archive byte for byte, and nothing
// else. Needs libfuse 3.17, kernel 6.9 and CAP_SYS_ADMIN.
#pragma once

#include <fuse_lowlevel.h>

#include <mutex>
#include <unordered_map>

#include "core/base/error.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call; not synchronized are ask_for() and refuse(), which come first.
class Passthrough {
 public:
  /// Whether this program and this user may have it; ENOTSUP or EPERM with what is missing.
  static Result<void> check_possible();

  /// In INIT. False where the kernel does not know it.
  bool ask_for(fuse_conn_info* conn);

  /// For the reply to an open: as many releases must follow. The kernel keeps the file until the last one.
  /// @return 0 where it was not asked for or does not go: then it never will again, since the kernel does not
  /// mix
  ///         both ways for one inode.
  int open(fuse_req_t req, Ino ino, int descriptor);
  void release(fuse_req_t req, Ino ino);

 private:
  struct Backing {
    int id = 0;
    unsigned opens = 0;
  };
  [[maybe_unused]] bool is_on_ = false;
  std::mutex mutex_;  // guards what follows; innermost
  std::unordered_map<Ino, Backing> backings_;
  [[maybe_unused]] bool has_failed_ = false;
};

}  // namespace stfs
