// Arenas in the memory of this host.
//
// A shareable arena is a memfd. Sharing seals the memfd, so another process can trust the bytes for as long
// as it maps them, even against this process. The kernel refuses F_SEAL_WRITE while a shared map could still
// write (mm/memfd.c, memfd_add_seals(), EBUSY). Therefore this process first replaces its map, at the same
// address, by a read-only private map. A private map of a file that no process can write to shows the same
// pages; and before Linux 6.7 a shared map of a sealed file was refused. F_SEAL_FUTURE_WRITE would make the
// exchange unnecessary, but would leave this process a writable map.
#pragma once

#include <memory>

#include "tools/device/arena.h"

namespace stfs::device {

/// New memory is zero. @return ENOMEM if there is no room for the map.
Result<std::shared_ptr<Arena>> allocate_cpu_arena(std::uint64_t size_bytes, bool is_shareable);

/// @return EINVAL if the descriptor is not sealed memory of at least this size.
Result<std::shared_ptr<Arena>> adopt_cpu_arena(UniqueFd descriptor, std::uint64_t size_bytes);

}  // namespace stfs::device
