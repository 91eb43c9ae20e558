// Measures how much of a file is in the page cache. This shows whether an upload is bound by the disk or by
// memory.
#pragma once

#include <cstdint>

#include "core/base/byte_range.h"

namespace stfs::upload {

/// Asks cachestat(2). Kernels before 6.5 have no cachestat, and the kernel refuses it to a caller that may
/// not write to the file. Then the result is an estimate: some pages are tried with RWF_NOWAIT. mincore(2)
/// would report all pages of such files as cached.
std::uint64_t cached_bytes(int fd, ByteRange range);

}  // namespace stfs::upload
