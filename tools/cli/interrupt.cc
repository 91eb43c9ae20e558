// The signal handler of InterruptGuard.
#include "tools/cli/interrupt.h"

#include "core/base/cancellation.h"

namespace stfs::tools {
namespace {

volatile std::sig_atomic_t caught_signal = 0;

void remember(int signal) {
  caught_signal = signal;
  Cancellation::note_end();
}

}  // namespace

InterruptGuard::InterruptGuard() {
  caught_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  for (std::size_t at = 0; at < kSignals.size(); ++at) {
    ::sigaction(kSignals[at], nullptr, &before_[at]);
    // Do not replace SIG_IGN: nohup and background jobs of a script ignore signals on purpose.
    if (before_[at].sa_handler != SIG_IGN) ::sigaction(kSignals[at], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t at = 0; at < kSignals.size(); ++at) ::sigaction(kSignals[at], &before_[at], nullptr);
  if (caught_signal != 0) ::raise(caught_signal);
}

bool interrupted() {
  return caught_signal != 0;
}

}  // namespace stfs::tools
