// Tests what /proc says about a process that closes a file.
#include "fs/base/process.h"

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/child_process.h"
#include "tests/support/skip.h"

using namespace stfs;
using stfs::test::ChildProcess;

TEST_CASE("a process that a signal has killed is told from one that exits", "[fs][process]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const ChildProcess exited(ChildProcess::Fate::Exits);
  const ChildProcess alive(ChildProcess::Fate::Lives);
  CHECK(ending_of(killed.pid()) == Ending::Killed);
  CHECK(ending_of(exited.pid()) == Ending::Closes);
  CHECK(ending_of(alive.pid()) == Ending::Closes);
  CHECK(ending_of(::getpid()) == Ending::Closes);
}

TEST_CASE("a process with threads that exits was not killed, and one that was killed was", "[fs][process]") {
  for (const bool is_killed : {false, true}) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // The first thread gets SIGKILL of exit_group(2): it has PF_SIGNALED.
      std::thread([is_killed] {
        if (is_killed) ::kill(::getpid(), SIGKILL);
        ::_exit(0);
      }).detach();
      for (;;) ::pause();
    }
    siginfo_t ended{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
    CHECK(ending_of(child) == (is_killed ? Ending::Killed : Ending::Closes));
    ::waitpid(child, nullptr, 0);
  }
}

TEST_CASE("what is no process was not killed", "[fs][process]") {
  ChildProcess gone(ChildProcess::Fate::IsKilled);
  gone.end();
  CHECK(ending_of(gone.pid()) == Ending::Closes);
  CHECK(ending_of(0) == Ending::Closes);
}

TEST_CASE("the facts of a thread's end make an ending", "[fs][process]") {
  const auto row = [](bool ending, bool signaled, int code, bool has_code, bool another) {
    return ending_of({ending, signaled, code, has_code, another});
  };
  //        ending signaled code    has    another exited
  CHECK(row(false, false, 0, true, false) == Ending::Closes);        // close(2)
  CHECK(row(false, false, SIGSTOP, true, false) == Ending::Closes);  // it was stopped by a debugger
  CHECK(row(true, false, 0, true, false) == Ending::Closes);         // exit(0)
  CHECK(row(true, false, 3 << 8, true, false) == Ending::Closes);    // exit(3)
  CHECK(row(true, true, 0, true, false) == Ending::Closes);          // exit(0) by another thread
  CHECK(row(true, true, 3 << 8, true, false) == Ending::Closes);
  CHECK(row(true, true, SIGTERM, true, false) == Ending::Killed);
  CHECK(row(true, true, 0x80 | SIGSEGV, true, false) == Ending::Killed);  // with a core dump
  CHECK(row(true, false, SIGSEGV, true, false) == Ending::Killed);        // by the kernel itself
  CHECK(row(true, false, 0, false, false) == Ending::Closes);             // the code is hidden from here on
  CHECK(row(true, true, 0, false, true) == Ending::Closes);
  CHECK(row(true, true, 0, false, false) == Ending::Untold);
}

TEST_CASE("a thread belongs to its process", "[fs][process]") {
  const ChildProcess other(ChildProcess::Fate::Lives);
  CHECK(process_of(::getpid()) == ::getpid());
  CHECK(process_of(other.pid()) == other.pid());
  pid_t of_thread = 0;
  std::thread([&] { of_thread = process_of(static_cast<pid_t>(::syscall(SYS_gettid))); }).join();
  CHECK(of_thread == ::getpid());
}

TEST_CASE("a thread that is gone stands for itself, and one of another pid namespace for nobody",
          "[fs][process]") {
  ChildProcess gone(ChildProcess::Fate::Lives);
  gone.end();
  CHECK(process_of(gone.pid()) == gone.pid());
  CHECK(process_of(0) == 0);
  CHECK(process_of(-1) == 0);
}

TEST_CASE("a process that /proc hides may be killed, and looks like all others that are hidden",
          "[fs][process]") {
  int pipe[2] = {};
  REQUIRE(::pipe(pipe) == 0);
  std::atomic<pid_t> thread = 0;
  std::thread other([&] {
    thread = static_cast<pid_t>(::syscall(SYS_gettid));
    char end = 0;
    static_cast<void>(::read(pipe[0], &end, 1));
  });
  while (thread == 0) std::this_thread::yield();
  const pid_t hidden = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool has_own_proc = ::unshare(CLONE_NEWNS) == 0 &&
                              ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                              ::mount("proc", "/proc", "proc", 0, "hidepid=2") == 0 &&
                              ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
    if (!has_own_proc) ::_exit(8);
    const bool is_ending = ending_of(hidden) == Ending::Hidden && ending_of(thread) == Ending::Hidden;
    const bool is_one = process_of(thread) == kHiddenProcess && process_of(hidden) == kHiddenProcess;
    ::_exit((is_ending ? 1 : 0) | (is_one ? 2 : 0));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  ::close(pipe[1]);
  other.join();
  ::close(pipe[0]);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 8) {
    test::note_skip("needs root for a /proc of its own");
  } else {
    CHECK(WEXITSTATUS(status) == 3);
  }
}

TEST_CASE("a process lives until somebody has waited for it", "[fs][process]") {
  ChildProcess other(ChildProcess::Fate::Exits);
  CHECK(is_alive(::getpid()));
  CHECK(is_alive(other.pid()));
  other.end();
  CHECK_FALSE(is_alive(other.pid()));
  CHECK_FALSE(is_alive(0));
  CHECK(is_alive(kHiddenProcess));
  CHECK(ending_of(kHiddenProcess) == Ending::Hidden);
}
