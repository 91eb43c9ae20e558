// How much of a file is in the page cache: whether an upload is bound by the disk or by memory.
#pragma once

#include <cstdint>

#include "core/base/byte_range.h"

namespace stfs::upload {

/// By cachestat(2); where the kernel has none (before 6.5) or refuses it (to who may not write to the file),
/// an estimate of some pages that are tried with RWF_NOWAIT. mincore(2) gives all pages of such files as
/// cached.
std::uint64_t cached_bytes(int fd, ByteRange range);

}  // namespace stfs::upload
