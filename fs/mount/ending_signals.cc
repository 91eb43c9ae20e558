// Waits with sigwait(3), and wakes the main thread with pthread_kill(3).
#include "fs/mount/ending_signals.h"

#include <csignal>
#include <ctime>

namespace stfs {
namespace {

// The handler of this signal does nothing. The signal only makes a sleeping system call return.
constexpr int kWakeSignal = SIGUSR2;

/// The ending signals, except signals that the parent process has set to be ignored (as nohup(1) does with
/// SIGHUP).
sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

}  // namespace

void EndingSignals::block() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // SIGPIPE is ignored, so when a reader of the output closes it, write(2) returns an error.
  std::signal(SIGPIPE, SIG_IGN);
}

void EndingSignals::start(Calls calls) {
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(kWakeSignal, &wake, nullptr);
  thread_ = std::thread(
      [this, calls = std::move(calls), main_thread = pthread_self()] { wait(calls, main_thread); });
}

void EndingSignals::stop() {
  if (!thread_.joinable()) return;
  is_stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void EndingSignals::wait(const Calls& calls, pthread_t main_thread) {
  sigset_t set = ending_signals();
  sigaddset(&set, SIGTERM);  // stop() sends it
  int number = 0;
  while (sigwait(&set, &number) != 0) {
  }
  if (is_stopping_) return;
  calls.end();
  constexpr struct timespec kPause = {.tv_sec = 0, .tv_nsec = 20'000'000};
  constexpr unsigned kPatience = 250;  // pauses
  for (unsigned pauses = 0; !is_stopping_; ++pauses) {
    if (pauses == kPatience) calls.be_late();
    if (wakes_) pthread_kill(main_thread, kWakeSignal);
    nanosleep(&kPause, nullptr);
  }
}

}  // namespace stfs
