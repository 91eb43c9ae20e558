// The capabilities of a mount that root made: only the capabilities that it needs to serve.
//
//   capability         while it serves  why
//   CAP_DAC_OVERRIDE   effective        other users own archives, journals and directories
//   CAP_FOWNER         effective        their modes and attributes, and names in sticky directories
//   CAP_CHOWN          effective        a new file has the user who makes it as its owner, a journal has
//                                       the archive's owner
//   CAP_SYS_PTRACE     effective        finds out how a program of another user ended (process.h)
//   CAP_SYS_ADMIN      in reserve       umount(2) at the end; effective with -o passthrough
//   CAP_FSETID         in reserve       a new directory keeps the set-group-ID bit of its parent
//
// A thread raises a capability in reserve for one call. CAP_FSETID is not effective in writes, so the kernel
// removes set-ID bits from a file that a user writes to through the mount, as it does without the mount.
// Without CAP_SYS_RESOURCE a user's quota also applies in the mount.
#pragma once

#include <cstdint>

#include "core/base/error.h"

namespace stfs {

/// The way in which CAP_SYS_ADMIN is kept.
enum class AdminRight : std::uint8_t { InReserve, Effective };

/// Permanently gives up all other capabilities of this process and of programs that it starts. Root's process
/// gets no_new_privs. An ordinary user's process does not, because its unmount needs fusermount3, a
/// set-user-ID program. Call while the process has one thread.
Result<void> drop_capabilities(AdminRight admin);

/// True if this thread has CAP_SYS_ADMIN, so that it may mount without fusermount3.
bool may_administer();

/// Makes a capability in reserve effective in this thread during the object's lifetime. Does nothing if the
/// capability is not in reserve; the call that needs it then fails.
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
