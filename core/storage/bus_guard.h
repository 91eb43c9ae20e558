// Copies out of a map of a file that another process may truncate during the copy. Reading a page that no
// longer exists raises SIGBUS, which ends the process. Here the signal ends only the copy.
//
// A process has one signal handler for all of its code. Only our own programs install this handler, in
// main(). A library never does: it would take SIGBUS away from the program that has loaded it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace stfs {

/// Installs the handler. main() calls it before the first thread starts. A SIGBUS outside a guarded copy goes
/// to the previous handler, or ends the process as usual.
/// @return false if the system refuses. copy_guarded() then copies nothing.
bool install_bus_guard();

/// Calls `copy` on this thread. A SIGBUS at an address inside the region ends the call at once. So `copy`
/// only copies: it owns nothing that has to be destroyed and holds no lock. Calls are not nested.
/// @return whether `copy` has returned normally. False without install_bus_guard(): `copy` is not called
///   then.
[[nodiscard]] bool copy_guarded(std::span<const std::byte> region, const std::function<void()>& copy);

}  // namespace stfs
