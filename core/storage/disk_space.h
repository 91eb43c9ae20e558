// Disk space that is there before the bytes are.
#pragma once

#include <cstdint>
#include <limits>

#include "core/base/byte_range.h"

namespace stfs {

enum class GrowsFile : bool { No, Yes };

/// fallocate(2), but for what can't succeed: ext4 would give away its last block before it finds that they
/// are not enough, and until the file is gone nobody else on that disk could write.
/// @param extent_bytes  asks for so much at a time. What was given before a failure stays.
/// @return 0, or errno: ENOSPC, EDQUOT, EFBIG, EIO; EOPNOTSUPP where the file system can't reserve.
int reserve_space(int fd, ByteRange range, GrowsFile grows,
                  std::uint64_t extent_bytes = std::numeric_limits<std::uint64_t>::max());

/// Of the file's disk, whoever may take it; the largest number where nobody says.
std::uint64_t free_bytes(int fd);

}  // namespace stfs
