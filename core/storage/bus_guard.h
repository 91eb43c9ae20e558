// Copies out of a map of a file that somebody may truncate meanwhile. Reading a page that is gone raises
// SIGBUS, which ends the process. Here the signal ends only the copy.
//
// A signal handler belongs to the whole process. So only our own programs install this one, in main(). A
// library never does: it would take SIGBUS away from the program that has loaded it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace stfs {

/// Installs the handler. main() calls it before the first thread starts. A SIGBUS that belongs to no guarded
/// copy goes to the previous handler, or ends the process as usual.
/// @return false if the system refuses. copy_guarded() then copies nothing.
bool install_bus_guard();

/// Calls `copy` on this thread. A SIGBUS at an address inside the region ends the call at once. So `copy`
/// only copies: it owns nothing that has to be destroyed and holds no lock. Calls are not nested.
/// @return whether `copy` has returned normally. False without install_bus_guard(): `copy` is not called
///   then.
[[nodiscard]] bool copy_guarded(std::span<const std::byte> region, const std::function<void()>& copy);

}  // namespace stfs
