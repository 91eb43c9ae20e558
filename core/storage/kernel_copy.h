// Lets the kernel copy from memory that may be unreadable. The kernel reports an error there instead of
// raising a signal. So no signal handler is needed, and a library can use this in any program.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/error.h"

namespace stfs {

/// Copies `from` through a pipe, in pieces. About three times slower than memcpy.
/// @param to  at least from.size().
/// @return EIO with code ArchiveCut if the file no longer has a page of `from`; the system's error if no pipe
/// can be made.
Result<void> copy_by_kernel(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace stfs
