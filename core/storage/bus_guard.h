// Copies out of a map of a file that somebody may cut in the meantime. The read of a page that is gone raises
// SIGBUS, which ends the process. Here the signal ends only the copy.
//
// A signal handler belongs to the whole process. So only a program of ours installs this one, in its main();
// a library never does, because it would take SIGBUS away from the program that has loaded it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace stfs {

/// Installs the handler. To be called by main() before the first thread. A SIGBUS that belongs to no guarded
/// copy goes to the handler that was there before, or ends the process as usual.
/// @return false where the system refuses: copy_guarded() copies nothing then.
bool install_bus_guard();

/// Calls `copy` on this thread. A SIGBUS at an address inside the region ends the call at once. So `copy`
/// does nothing but copy: it owns nothing that has to be destroyed and holds no lock. Calls are not nested.
/// @return whether `copy` came to its end. False without install_bus_guard(): `copy` was not called then.
[[nodiscard]] bool copy_guarded(std::span<const std::byte> region, const std::function<void()>& copy);

}  // namespace stfs
