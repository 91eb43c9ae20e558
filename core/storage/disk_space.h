// Queries the free disk space, preallocates space, and distinguishes holes from bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/byte_range.h"

namespace stfs {

/// The free space of a file system.
struct FreeSpace {
  std::uint64_t device = 0;  // st_dev of its files
  std::uint64_t free_bytes = 0;
  std::uint64_t available_bytes = 0;  // the part that users without privileges may take
};

/// Returns the free space where an open file is. Nothing if the file system does not report it. May wait for
/// the store.
std::optional<FreeSpace> free_space(int fd);

enum class GrowsFile : bool { No, Yes };

/// Calls fallocate(2), unless it can't succeed: ext4 would take all free blocks before it finds them too few,
/// and no other program could write to that disk until the file is removed.
/// @return 0, or errno: ENOSPC, EDQUOT, EFBIG, EIO; EOPNOTSUPP if the file system can't preallocate.
int reserve_space(int fd, ByteRange range, GrowsFile grows);

/// Returns true if at least due_bytes of the range are outside of holes, or if the file system can't report
/// holes.
bool has_bytes(int fd, ByteRange range, std::uint64_t due_bytes);

}  // namespace stfs
