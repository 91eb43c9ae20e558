// The protocol's side of the file system: one handler per operation, one reply each.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <functional>
#include <mutex>

#include "fs/kernel/invalidator.h"
#include "fs/kernel/passthrough.h"
#include "fs/kernel/slow_requests.h"
#include "fs/model/forest.h"

namespace stfs {

/// What handlers reach through the session's user data. Lives as long as the session.
struct Mount {
  Forest& forest;
  Invalidator* invalidator = nullptr;     // set before the first request
  SlowRequests* slow = nullptr;           // the same
  fuse_session* session = nullptr;        // the same
  std::function<void()> on_first_open{};  // by then the kernel has taken our answer to INIT
  std::once_flag has_opened{};
  bool wants_passthrough = false;  // the same
  Passthrough passthrough{};
  bool kernel_keeps_open = false;  // no OPEN need be sent twice (set in init)
  /// False while the root's entries change: its listings then make the kernel know none of them.
  std::atomic<bool> links_listed_root = true;
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace stfs
