// Disk space that is there before the bytes are.
#pragma once

#include <cstdint>

#include "core/base/byte_range.h"

namespace stfs {

enum class GrowsFile : bool { No, Yes };

/// fallocate(2), but for what can't succeed: ext4 would give away its last block before it finds that they
/// are not enough, and until the file is gone nobody else on that disk could write.
/// @return 0, or errno: ENOSPC, EDQUOT, EFBIG, EIO; EOPNOTSUPP where the file system can't reserve.
int reserve_space(int fd, ByteRange range, GrowsFile grows);

}  // namespace stfs
