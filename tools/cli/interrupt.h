// Handles Ctrl-C during a long write.
//
// The default action would end the process and leave a temporary file of many gigabytes. A verb that writes
// therefore treats the signal as a request to stop, and cleans up before it ends.
#pragma once

#include <array>
#include <csignal>

namespace stfs::tools {

/// While it exists, SIGINT, SIGTERM and SIGHUP only set a flag. At most one may exist, on the main thread.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  /// Restores the previous actions. Raises a caught signal again, so that a shell sees that its command was
  /// interrupted.
  ~InterruptGuard();

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// Returns true if one of these signals was caught.
bool interrupted();

}  // namespace stfs::tools
