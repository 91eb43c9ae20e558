// Looks for the guards in /proc/PID/cmdline.
#include "tools/target/daemons.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/storage/other_processes.h"
#include "tools/target/question.h"

namespace stfs::tools {
namespace {

/// Returns the one user whose rights a process has. Nothing if there are several, as while a set-user-ID
/// program runs.
std::optional<std::uint32_t> only_user_of(pid_t process) {
  auto users = status_words(process, "Uid:");  // real, effective, saved, of files
  users.resize(std::min<std::size_t>(users.size(), 3));
  if (users.size() != 3 || std::ranges::adjacent_find(users, std::ranges::not_equal_to()) != users.end())
    return std::nullopt;
  std::uint32_t user = 0;
  const auto [end, failed] =
      std::from_chars(users.front().data(), users.front().data() + users.front().size(), user);
  return failed == std::errc() ? std::optional(user) : std::nullopt;
}

/// sudo gives itself all numbers of root before it asks for the password.
/// @param user  of the process. An ordinary user does not see another user's program. The kernel also hides a
///              set-user-ID program that another user has started, from root without CAP_SYS_PTRACE.
bool may_run_set_id_program(pid_t process, std::uint32_t user) {
  const auto program = known_file(fmt::format("/proc/{}/exe", process));
  return program ? (program->mode & (S_ISUID | S_ISGID)) != 0 : user == ::geteuid();
}

/// May wait for ever for another user's process (other_processes.h). Reads no more than a guard's: a process
/// decides how long its command line is.
std::string command_line_of(pid_t process) {
  constexpr std::size_t kMostBytes = 8192;
  std::string text(kMostBytes, '\0');
  std::ifstream file(fmt::format("/proc/{}/cmdline", process), std::ios::binary);
  file.read(text.data(), kMostBytes);
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::vector<std::string> words_of(std::string_view command_line) {
  std::vector<std::string> words;
  while (!command_line.empty() && words.size() <= kGuardArguments) {
    const std::size_t end = std::min(command_line.find('\0'), command_line.size());
    words.emplace_back(command_line.substr(0, end));
    command_line.remove_prefix(std::min(end + 1, command_line.size()));
  }
  return words;
}

/// Reads command lines. Asks a process of another user in a child.
class CommandLines {
 public:
  std::vector<std::string> of(pid_t process, std::uint32_t user) {
    if (user == 0 || user == ::geteuid()) return words_of(command_line_of(process));
    constexpr std::chrono::seconds kPatience{1};
    const auto deadline = deadlines_.try_emplace(user, deadline_in(kPatience)).first;
    if (time_left(deadline->second) == std::chrono::milliseconds::zero()) return {};
    Question question([process] { return command_line_of(process); });
    return words_of(question.answer_by(deadline->second).value_or(""));
  }

 private:
  std::map<std::uint32_t, Deadline> deadlines_;  // by user: one user's processes take no time from another's
};

/// A new guard still has the name of the link by which it was started (fs/mount/guard.cc).
bool has_name_of_guard(pid_t process) {
  const std::string name = comm_of(process);
  return name == kGuardName || name == "exe";
}

/// Returns the guard's parent, if it is the process that the guard names. A guard that has lost its daemon
/// has another parent. The daemon knows its number in its own namespace.
std::optional<pid_t> daemon_of(pid_t guard, const std::string& named, std::uint32_t user) {
  const auto parent = status_words(guard, "PPid:");
  if (parent.empty()) return std::nullopt;
  pid_t daemon = 0;
  std::from_chars(parent.front().data(), parent.front().data() + parent.front().size(), daemon);
  const auto numbers = status_words(daemon, "NSpid:");
  if (numbers.empty() || numbers.back() != named) return std::nullopt;
  if (only_user_of(daemon) != user || may_run_set_id_program(daemon, user)) return std::nullopt;
  return daemon;
}

std::vector<std::optional<pid_t>> look_for_daemons(std::span<const MountEntry> mounts) {
  using Numbers = std::pair<std::string_view, std::string_view>;  // id and device
  std::map<Numbers, std::size_t> by_numbers;
  for (std::size_t at = 0; at < mounts.size(); ++at)
    by_numbers.emplace(Numbers(mounts[at].id, mounts[at].device), at);
  std::vector<std::optional<pid_t>> daemons(mounts.size());
  CommandLines lines;
  any_process([&](pid_t process) {
    if (!has_name_of_guard(process)) return false;
    const auto user = only_user_of(process);
    const auto is_of_user = [&](const MountEntry& mount) { return user && mount.user() == user; };
    if (std::ranges::none_of(mounts, is_of_user) || may_run_set_id_program(process, *user)) return false;
    const std::vector<std::string> words = lines.of(process, *user);
    if (words.size() != kGuardArguments || words[0] != kGuardName) return false;
    const auto found = by_numbers.find(Numbers(words[2], words[4]));
    if (found == by_numbers.end() || daemons[found->second] || !is_of_user(mounts[found->second]))
      return false;
    daemons[found->second] = daemon_of(process, words[1], *user);
    return false;
  });
  return daemons;
}

}  // namespace

std::vector<std::optional<pid_t>> find_daemons(std::span<const MountEntry> mounts) {
  constexpr std::chrono::seconds kPatience{5};
  // A user can hold a listing of /proc up for ever.
  Question question([&] {
    std::string text;
    for (const auto& daemon : look_for_daemons(mounts)) text += fmt::format("{} ", daemon.value_or(0));
    return text;
  });
  std::istringstream words(question.answer_by(deadline_in(kPatience)).value_or(""));
  std::vector<std::optional<pid_t>> daemons(mounts.size());
  for (auto& daemon : daemons) {
    if (pid_t process = 0; words >> process && process != 0) daemon = process;
  }
  return daemons;
}

std::optional<pid_t> find_daemon(const MountEntry& mount) {
  return find_daemons({&mount, 1}).front();
}

}  // namespace stfs::tools
