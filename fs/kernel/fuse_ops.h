// The FUSE handlers: one handler per operation. Each request gets exactly one reply.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <functional>
#include <mutex>

#include "fs/kernel/invalidator.h"
#include "fs/kernel/passthrough.h"
#include "fs/kernel/slow_requests.h"
#include "fs/model/mount_root.h"

namespace stfs {

/// The mount's objects, which handlers reach through the session's user data. Lives as long as the session.
struct Mount {
  MountRoot& mount_root;
  Invalidator* invalidator = nullptr;     // set before the first request
  SlowRequests* slow = nullptr;           // set before the first request; runs requests that may wait
  SlowRequests* names = nullptr;          // also; runs look-ups and listings that wait only for a disk
  SlowRequests* checksums = nullptr;      // also; runs the requests that read whole tensors
  fuse_session* session = nullptr;        // set before the first request
  std::function<void()> on_first_open{};  // by then the kernel has processed the reply to INIT
  std::once_flag has_opened{};
  bool wants_passthrough = false;  // set before the first request
  bool refuses_modes = false;      // -o strict_modes; set before the first request
  bool reads_may_wait = false;     // for the network; set before the first request
  Passthrough passthrough{};
  bool kernel_keeps_open = false;  // the kernel need not send a second OPEN; set in on_init()
  /// False while the root's entries change. Then listings of the root add no entries to the kernel's caches.
  std::atomic<bool> links_listed_root = true;
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace stfs
