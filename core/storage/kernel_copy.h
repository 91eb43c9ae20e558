// A copy that the kernel makes. Memory that can't be read is an error there: no signal is raised and no
// signal handler is needed, so that a library can use it in any program.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/error.h"

namespace stfs {

/// Copies `from` through a pipe, in pieces. Slower than memcpy by a factor of about three.
/// @param to  at least from.size().
/// @return EIO with code ArchiveCut where a page of `from` is gone, the system's error where there is no
/// pipe.
Result<void> copy_by_kernel(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace stfs
