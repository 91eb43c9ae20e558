// Copies out of a map of a file that somebody may cut in the meantime: a page that is gone is a signal,
// SIGBUS, which would end the process. Here it ends the copy.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace stfs {

/// Calls `copy`, on this thread. A SIGBUS at an address in the region ends it there and then, wherever it is:
/// so it may do nothing but copy, own nothing that wants to be destroyed, and hold no lock. Any other SIGBUS
/// goes to the handler that was there before. Not to be nested.
/// @return whether it came to its end.
[[nodiscard]] bool copy_guarded(std::span<const std::byte> region, const std::function<void()>& copy);

}  // namespace stfs
