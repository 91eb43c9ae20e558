// Preallocates disk space.
#pragma once

#include <cstdint>

#include "core/base/byte_range.h"

namespace stfs {

enum class GrowsFile : bool { No, Yes };

/// Calls fallocate(2), unless it can't succeed: ext4 would take all free blocks before it finds them too few,
/// and nobody else on that disk could write until the file is gone.
/// @return 0, or errno: ENOSPC, EDQUOT, EFBIG, EIO; EOPNOTSUPP if the file system can't preallocate.
int reserve_space(int fd, ByteRange range, GrowsFile grows);

}  // namespace stfs
