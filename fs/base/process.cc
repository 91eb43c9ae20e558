// Reads /proc/TID/stat and /proc/TID/status.
#include "fs/base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"

namespace stfs {
namespace {

// linux/sched.h; fields of /proc/TID/stat as in proc(5).
constexpr unsigned kExiting = 0x4;
constexpr unsigned kSignaled = 0x400;
constexpr int kSignalBits = 0x7f;  // of an exit code

/// Returns the first 4096 bytes of a file of /proc, or an empty text if the file cannot be read.
std::string content_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  std::string text(4096, '\0');
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

template <class Number>
Number number_in(std::string_view text) {
  Number number = 0;
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return 0;
  text.remove_prefix(begin);
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// False if /proc is of another pid namespace. Its ids then differ from the ids that the kernel gives the
/// mount.
bool is_proc_ours() {
  std::array<char, 32> target{};
  const ssize_t size = ::readlink("/proc/self", target.data(), target.size());
  return size > 0 &&
         number_in<pid_t>({target.data(), static_cast<std::size_t>(size)}) == static_cast<pid_t>(::getpid());
}

bool is_first_of_its_process(pid_t thread) {
  // Signal 0 only checks that the thread exists.
  return ::syscall(SYS_tgkill, thread, thread, 0) == 0 || errno == EPERM;
}

/// Reads the flags and the exit code from /proc/.../stat.
std::optional<ThreadEnd> end_in(const std::string& directory) {
  const std::string content = content_of(directory + "/stat");
  // "PID (COMMAND) STATE PPID PGRP SESSION TTY TPGID FLAGS ... EXIT_CODE": the command may contain any
  // character, so the fields are counted from the last `)`.
  const std::size_t command_end = content.rfind(')');
  if (command_end == std::string::npos) return std::nullopt;
  std::string_view text(content);
  text.remove_prefix(command_end);
  ThreadEnd end;
  end.exit_code = number_in<int>(text.substr(text.rfind(' ')));
  for (int field = 0; field < 7; ++field) {
    const std::size_t space = text.find(' ', 1);
    if (space == std::string_view::npos) return std::nullopt;
    text.remove_prefix(space);
  }
  const auto flags = number_in<unsigned>(text);
  end.is_ending = (flags & kExiting) != 0;
  end.was_signaled = (flags & kSignaled) != 0;
  return end;
}

/// The kernel shows 0 instead of an exit code that this process may not read. It checks the same right for
/// the links in that directory, and there it reports a refusal as EACCES or EPERM.
bool may_read_code(const std::string& directory) {
  std::array<char, 1> target{};
  return ::readlink((directory + "/cwd").c_str(), target.data(), target.size()) >= 0 ||
         (errno != EACCES && errno != EPERM);
}

/// True if a thread exists and /proc hides it.
bool is_hidden(pid_t thread) {
  struct stat st {};
  if (::stat(fmt::format("/proc/{}/status", thread).c_str(), &st) == 0) return false;
  return (errno == ENOENT || errno == EACCES || errno == EPERM) && is_alive(thread);
}

/// Finds out from /proc/TID/status whether a thread still has its memory. An ending thread gives up its
/// memory before it closes its files, and its status has no sizes from then on. Reading /proc/TID/stat or the
/// links instead could deadlock: they block while the thread is inside exec(2), and exec waits for a reply of
/// the mount when it closes files. /proc/TID/status never blocks.
bool has_memory(const std::string& status) {
  return status.empty() || status.find("\nVmSize:") != std::string::npos;
}

bool has_thread_that_exits(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory + "/task", error), end; !error && at != end;
       at.increment(error)) {
    const auto thread = end_in(at->path());
    if (thread && thread->is_ending && !thread->was_signaled) return true;
  }
  return false;
}

}  // namespace

pid_t process_of(pid_t thread) {
  if (thread <= 0) return 0;
  if (!is_proc_ours()) return thread;
  if (is_hidden(thread)) return kHiddenProcess;
  if (is_first_of_its_process(thread)) return thread;
  constexpr std::string_view kKey = "\nTgid:";
  const std::string text = content_of(fmt::format("/proc/{}/status", thread));
  const std::size_t at = text.find(kKey);
  const pid_t process = at == std::string::npos ? 0 : number_in<pid_t>(text.substr(at + kKey.size()));
  return process > 0 ? process : thread;
}

bool is_alive(pid_t process) {
  if (process == kHiddenProcess) return true;
  return process > 0 && (::kill(process, 0) == 0 || errno == EPERM);
}

Ending ending_of(const ThreadEnd& end) {
  if (!end.is_ending) return Ending::Closes;
  if ((end.exit_code & kSignalBits) != 0) return Ending::Killed;
  if (!end.was_signaled || end.has_code || end.exit_code != 0 || end.another_exited) return Ending::Closes;
  return Ending::Untold;
}

Ending ending_of(pid_t thread) {
  if (thread == kHiddenProcess) return Ending::Hidden;
  if (thread <= 0 || !is_proc_ours()) return Ending::Closes;
  if (is_hidden(thread)) return Ending::Hidden;
  const std::string directory = fmt::format("/proc/{}", thread);
  if (has_memory(content_of(directory + "/status"))) return Ending::Closes;
  auto end = end_in(directory);
  if (!end) return Ending::Closes;
  end->has_code = may_read_code(directory);
  if (ending_of(*end) == Ending::Untold) end->another_exited = has_thread_that_exits(directory);
  return ending_of(*end);
}

}  // namespace stfs
