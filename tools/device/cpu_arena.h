// Arenas in the memory of this host.
//
// One that can be shared is a memfd. Sharing seals it, so that whoever maps it can trust its bytes for as
// long as it likes, even against us. F_SEAL_WRITE is refused while a shared map could still write
// (mm/memfd.c, memfd_add_seals(), EBUSY), so our own map is first replaced, at its address, by a read-only
// private one: of a file that nobody can write to any more that shows the same pages, and before Linux 6.7 a
// shared one would have been refused. F_SEAL_FUTURE_WRITE would spare the exchange, but leave us a map that
// writes.
#pragma once

#include <memory>

#include "tools/device/arena.h"

namespace stfs::upload {

/// @return ENOMEM where there is no room for the map; fresh memory is zero.
Result<std::shared_ptr<Arena>> allocate_cpu_arena(std::uint64_t size_bytes, bool is_shareable);

/// @return EINVAL where the descriptor is no sealed memory of that size.
Result<std::shared_ptr<Arena>> adopt_cpu_arena(UniqueFd descriptor, std::uint64_t size_bytes);

}  // namespace stfs::upload
