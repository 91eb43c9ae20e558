// Tests the three signals that end a mount, each in a separate process.
#include "fs/mount/ending_signals.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

/// Runs the function in a child. Returns the child's exit status, or -1 if a signal has killed it.
template <class Function>
int status_of(Function&& in_child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(20);
    ::_exit(in_child());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("a signal ends the loop and wakes its thread, before and after start", "[fs][ending_signals]") {
  const int number = GENERATE(SIGINT, SIGTERM, SIGHUP);
  const bool is_early = GENERATE(true, false);
  CAPTURE(number, is_early);
  CHECK(status_of([&] {
          EndingSignals::block();
          if (is_early) ::kill(::getpid(), number);
          std::atomic<int> ends = 0;
          EndingSignals signals;
          signals.start({.end = [&] { ++ends; }, .be_late = [] {}});
          if (!is_early) ::kill(::getpid(), number);
          // A sleep that only a signal's handler ends.
          int interrupted = 0;
          while (ends == 0 || interrupted == 0) {
            if (::poll(nullptr, 0, -1) < 0 && errno == EINTR) ++interrupted;
          }
          signals.stop();
          return ends == 1 ? 0 : 1;
        }) == 0);
}

TEST_CASE("without a signal nothing is ended", "[fs][ending_signals]") {
  CHECK(status_of([] {
          EndingSignals::block();
          bool has_ended = false;
          {
            EndingSignals signals;
            signals.start({.end = [&] { has_ended = true; }, .be_late = [&] { has_ended = true; }});
          }
          EndingSignals never_started;
          never_started.stop();
          return has_ended ? 1 : 0;
        }) == 0);
}

TEST_CASE("a signal that the parent process has told to ignore stays ignored", "[fs][ending_signals]") {
  CHECK(status_of([] {
          std::signal(SIGHUP, SIG_IGN);
          EndingSignals::block();
          std::atomic<int> ends = 0;
          EndingSignals signals;
          signals.start({.end = [&] { ++ends; }, .be_late = [] {}});
          ::kill(::getpid(), SIGHUP);
          ::poll(nullptr, 0, 100);
          signals.stop();
          return ends.load();
        }) == 0);
}

TEST_CASE("a reader that goes away does not kill the process", "[fs][ending_signals]") {
  CHECK(status_of([] {
          EndingSignals::block();
          int ends[2];
          if (::pipe(ends) != 0) return 1;
          ::close(ends[0]);
          return ::write(ends[1], "x", 1) < 0 && errno == EPIPE ? 0 : 1;
        }) == 0);
}
