// Ctrl-C in the middle of a long write.
//
// The default action would end the process with a temporary file of many gigabytes left behind; a verb
// that writes takes the signal as a request instead and cleans up on its way out.
#pragma once

#include <array>
#include <csignal>

namespace stfs::tools {

/// While it lives, SIGINT, SIGTERM and SIGHUP only set a flag. One at a time, on the main thread.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  /// Puts the old actions back; a signal that came meanwhile is raised again, so that a shell sees that
  /// its command was interrupted.
  ~InterruptGuard();

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// Whether such a signal has come.
bool interrupted();

}  // namespace stfs::tools
