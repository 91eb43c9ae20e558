// Field 9 of /proc/PID/stat.
#include "fs/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "core/unique_fd.h"

namespace stfs {
namespace {

constexpr unsigned kSignaled = 0x400;  // PF_SIGNALED, linux/sched.h: "killed by a signal"

}  // namespace

bool is_killed_by_signal(pid_t thread) {
  if (thread <= 0) return false;
  const UniqueFd stat(::open(fmt::format("/proc/{}/stat", thread).c_str(), O_RDONLY | O_CLOEXEC));
  if (!stat) return false;
  std::array<char, 1024> buffer{};
  const ssize_t size = ::read(stat.get(), buffer.data(), buffer.size());
  if (size <= 0) return false;
  std::string_view text(buffer.data(), static_cast<std::size_t>(size));
  // "PID (COMMAND) STATE PPID PGRP SESSION TTY TPGID FLAGS ...": the command may hold anything, so
  // count from the last parenthesis.
  const std::size_t command_end = text.rfind(')');
  if (command_end == std::string_view::npos) return false;
  text.remove_prefix(command_end);
  for (int field = 0; field < 7; ++field) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return false;
    text.remove_prefix(space + 1);
  }
  unsigned flags = 0;
  std::from_chars(text.data(), text.data() + text.size(), flags);
  return (flags & kSignaled) != 0;
}

bool lives_elsewhere(pid_t thread, pid_t closer) {
  if (thread <= 0 || closer <= 0 || thread == closer) return false;
  return ::access(fmt::format("/proc/{}", thread).c_str(), F_OK) == 0 &&
         ::access(fmt::format("/proc/{}/task/{}", closer, thread).c_str(), F_OK) != 0;
}

}  // namespace stfs
