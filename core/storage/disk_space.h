// Tells how much disk space is free, preallocates it, and tells holes from bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/byte_range.h"

namespace stfs {

/// The free space of a file system.
struct FreeSpace {
  std::uint64_t device = 0;  // st_dev of its files
  std::uint64_t free_bytes = 0;
  std::uint64_t available_bytes = 0;  // the part of it that users without privileges may take
};

/// The free space where an open file is. Nothing if the file system does not tell. May wait for the store.
std::optional<FreeSpace> free_space(int fd);

enum class GrowsFile : bool { No, Yes };

/// Calls fallocate(2), unless it can't succeed: ext4 would take all free blocks before it finds them too few,
/// and nobody else on that disk could write until the file is gone.
/// @return 0, or errno: ENOSPC, EDQUOT, EFBIG, EIO; EOPNOTSUPP if the file system can't preallocate.
int reserve_space(int fd, ByteRange range, GrowsFile grows);

/// Whether at least so many bytes of a range lie in no hole. All of them where the file system does not tell.
bool has_bytes(int fd, ByteRange range, std::uint64_t due_bytes);

}  // namespace stfs
