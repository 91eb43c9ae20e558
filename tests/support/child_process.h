// Child processes for tests of questions about a pid: the child lives, has exited, or was killed by a signal.
// An ended child stays a zombie until the test is over, so its pid is not used again.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace stfs::test {

class ChildProcess {
 public:
  enum class Fate { Lives, Exits, IsKilled };

  explicit ChildProcess(Fate fate) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      if (fate == Fate::Exits) ::_exit(0);
      for (;;) ::pause();
    }
    if (fate == Fate::IsKilled) ::kill(pid_, SIGKILL);
    siginfo_t ended{};
    if (fate != Fate::Lives) ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT);
  }
  ~ChildProcess() { end(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  /// Kills the child if it lives, and frees its pid.
  void end() {
    if (pid_ <= 0 || is_gone_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    is_gone_ = true;
  }

 private:
  pid_t pid_;
  bool is_gone_ = false;
};

}  // namespace stfs::test
