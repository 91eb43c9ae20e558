// The capabilities of a mount that root made: those that serving it takes, and no others.
//
//   capability         while it serves  why
//   CAP_DAC_OVERRIDE   effective        archives, journals and directories belong to other users
//   CAP_FOWNER         effective        their modes and attributes, and names in sticky directories
//   CAP_CHOWN          effective        a new file belongs to the user who makes it, a journal to the
//                                       archive's owner
//   CAP_SYS_PTRACE     effective        how a program of another user ended (process.h)
//   CAP_SYS_ADMIN      in reserve       umount(2) at the end; effective with -o passthrough
//   CAP_FSETID         in reserve       a new directory keeps the set-group-ID bit of its parent
//
// A thread raises what is in reserve for one call. CAP_FSETID is not effective in writes, so the kernel takes
// set-ID bits from a file that a user writes to through the mount, as it does without the mount. Without
// CAP_SYS_RESOURCE a user's quota holds in the mount, too.
#pragma once

#include <cstdint>

#include "core/base/error.h"

namespace stfs {

/// How CAP_SYS_ADMIN is kept.
enum class AdminRight : std::uint8_t { InReserve, Effective };

/// Gives up all other capabilities of this process for good, also for programs that it starts. Root's process
/// gets no_new_privs. An ordinary user's process does not: its unmount needs fusermount3, a set-user-ID
/// program. Call while the process has one thread.
Result<void> drop_capabilities(AdminRight admin);

/// Whether this thread has CAP_SYS_ADMIN, so that it may mount without fusermount3.
bool may_administer();

/// Makes a capability in reserve effective in this thread, for as long as the object lives. Without the
/// capability in reserve it does nothing: the call that needs it fails.
class RaisedCapability {
 public:
  /// @param capability  CAP_...
  explicit RaisedCapability(int capability);
  ~RaisedCapability();
  RaisedCapability(const RaisedCapability&) = delete;
  RaisedCapability& operator=(const RaisedCapability&) = delete;

 private:
  const std::uint64_t before_;
};

}  // namespace stfs
