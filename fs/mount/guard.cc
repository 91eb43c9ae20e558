// Starts the guard with posix_spawn(3). The guard waits with sigwaitinfo(2).
#include "fs/mount/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "core/base/printable.h"
#include "core/base/unique_fd.h"
#include "fs/base/capabilities.h"
#include "fs/base/log.h"
#include "fs/mount/own_mount.h"

extern char** environ;

namespace stfs {
namespace {

constexpr std::string_view kName = kGuardName;      // also for killall(1): not the name safetensorsfs
constexpr int kArguments = kGuardArguments;         // core/storage/mount_table.h lists them
constexpr std::string_view kUnmounts = "unmounts";  // -o auto_unmount
constexpr std::string_view kLeaves = "leaves";
// The guard's descriptor of the connection's file `abort`, if the daemon could open it.
constexpr int kAbortFile = 3;
// The kernel sends this signal to the guard when the daemon's main thread ends. Other processes may send it
// too.
constexpr int kDeathSignal = SIGUSR1;

/// The files and the attributes of a new process, for posix_spawn(3).
class Spawning {
 public:
  Spawning() {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
  }
  ~Spawning() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  Spawning(const Spawning&) = delete;
  Spawning& operator=(const Spawning&) = delete;

  /// Gives the process no other descriptor than `file`, as number kAbortFile, if `file` is open.
  void keep_only(const UniqueFd& file) {
    // This action is first, because a daemon that was started without standard input may have `file` at its
    // number.
    if (file) posix_spawn_file_actions_adddup2(&files_, file.get(), kAbortFile);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_addopen(&files_, fd, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_addclosefrom_np(&files_, file ? kAbortFile + 1 : kAbortFile);
    posix_spawn_file_actions_addchdir_np(&files_, "/");
  }
  /// Gives the process its own session, and blocks all signals.
  void set_apart() {
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  }
  Result<pid_t> start(const std::array<std::string, kArguments>& arguments) {
    std::array<char*, kArguments + 1> argv{};
    std::ranges::transform(arguments, argv.begin(),
                           [](const std::string& word) { return const_cast<char*>(word.c_str()); });
    pid_t pid = -1;
    const int failed = posix_spawn(&pid, "/proc/self/exe", &files_, &attributes_, argv.data(), environ);
    if (failed != 0) return fail_system(failed, "/proc/self/exe", "start a guard");
    return pid;
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

/// True if no thread of the process is running any more, so the kernel has closed its files. If the main
/// thread is a zombie, other threads may still run.
bool has_ended(pid_t pid) {
  std::error_code failed;
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid), failed);
  if (failed) return true;
  return std::ranges::all_of(tasks, [](const auto& task) {
    std::string line;
    std::getline(std::ifstream(task.path() / "stat"), line);
    const std::size_t name_end = line.rfind(") ");
    return name_end == std::string::npos || std::strchr("ZX", line[name_end + 2]) != nullptr;
  });
}

/// Ends the connection of a daemon whose main thread has ended. @return false if it can't.
bool end_connection(pid_t daemon, const OwnMount& mount) {
  // If the connection has already ended, the kernel ignores the write.
  if (abort_connection(kAbortFile)) return true;
  // Before Linux 6.8 another mount may get the numbers of this mount. Most daemons end without help before
  // the first abort.
  constexpr struct timespec kPause = {.tv_sec = 0, .tv_nsec = 100'000'000};
  constexpr int kTries = 100;
  ::nanosleep(&kPause, nullptr);
  for (int tries = 0; tries < kTries; ++tries) {
    if (has_ended(daemon)) return true;
    mount.abort();
    ::nanosleep(&kPause, nullptr);
  }
  return has_ended(daemon);
}

/// Waits until the kernel reports that the daemon has ended.
void wait_for_end(pid_t daemon) {
  ::prctl(PR_SET_PDEATHSIG, kDeathSignal);
  if (::getppid() != daemon) return;  // ended before the call
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kDeathSignal);
  siginfo_t signal{};
  while (::sigwaitinfo(&set, &signal) != kDeathSignal || signal.si_pid != daemon) {
  }
}

}  // namespace

Guard::Guard(const OwnMount& mount, const Options& options) {
  Spawning spawning;
  const UniqueFd abort_file = mount.open_abort_file();
  spawning.keep_only(abort_file);
  spawning.set_apart();
  const OwnMount::Numbers& numbers = mount.numbers();
  const auto started = spawning.start(
      {std::string(kName), std::to_string(::getpid()), numbers.id, numbers.lasting, numbers.device,
       std::string(options.unmounts_with_daemon ? kUnmounts : kLeaves), options.mount_point.string()});
  if (started) {
    pid_ = *started;
  } else {
    log::warning("{}: {}; if this program is killed, programs that use the mount may hang",
                 options.mount_point.string(), started.error().message);
  }
}

Guard::~Guard() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool Guard::is_guard(int argc, const char* const* argv) {
  return argc == kArguments && argv[0] == kName;
}

int Guard::run(const char* const* argv) {
  ::prctl(PR_SET_NAME, kName.data());
  // If this fails, the guard has more rights than it needs, but still works.
  static_cast<void>(drop_capabilities(AdminRight::Effective).has_value());
  pid_t daemon = 0;
  const std::string_view pid = argv[1];
  std::from_chars(pid.data(), pid.data() + pid.size(), daemon);
  wait_for_end(daemon);
  const OwnMount mount({.id = argv[2], .lasting = argv[3], .device = argv[4]});
  const bool has_aborted = end_connection(daemon, mount);
  if (!has_aborted) {
    ::openlog("safetensorsfs", 0, LOG_DAEMON);
    ::syslog(LOG_WARNING, "%s: the program was killed, and its mount hangs: end it with `umount -f`%s",
             printable(argv[6]).c_str(), ::geteuid() == 0 ? "" : " as root");
  }
  // With -o auto_unmount fusermount3 also unmounts, but version 3.14 does not do so for an ordinary user: it
  // may not enter the mount, and takes the mount for alive.
  if (argv[5] == kUnmounts) mount.unmount();
  return has_aborted ? 0 : 1;
}

}  // namespace stfs
