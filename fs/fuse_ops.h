// The protocol's side of the file system: one handler per operation, one reply each.
#pragma once

#include <fuse_lowlevel.h>

#include "fs/filesystem.h"
#include "fs/invalidator.h"

namespace stfs {

/// What handlers reach through the session's user data. Lives as long as the session.
struct Mount {
  Filesystem& filesystem;
  Invalidator* invalidator = nullptr;  // set before the first request
  std::function<void()> on_ready;      // when the kernel and the driver have agreed on the protocol
  bool kernel_keeps_open = false;      // no OPEN and no OPENDIR need be sent (set in init)
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace stfs
