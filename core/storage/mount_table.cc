// Parses proc_pid_mountinfo(5), and looks for the guard in /proc/PID/cmdline.
#include "core/storage/mount_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

/// mountinfo writes space, tab, newline and backslash as \OOO.
std::string unescaped(std::string_view field) {
  std::string text;
  for (std::size_t at = 0; at < field.size(); ++at) {
    if (field[at] == '\\' && at + 3 < field.size()) {
      text +=
          static_cast<char>((field[at + 1] - '0') * 64 + (field[at + 2] - '0') * 8 + (field[at + 3] - '0'));
      at += 3;
    } else {
      text += field[at];
    }
  }
  return text;
}

/// Returns the fields of a line. Only single spaces separate fields: names may contain other white space, and
/// a field may be empty.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t end = 0; (end = line.find(' ')) != line.npos; line.remove_prefix(end + 1))
    fields.push_back(line.substr(0, end));
  fields.push_back(line);
  return fields;
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string> command_line_of(const std::string& process) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", process), std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; words.size() <= kGuardArguments && std::getline(file, word, '\0');)
    words.push_back(word);
  return words;
}

/// Returns the words of a line of /proc/PID/status behind its name.
std::vector<std::string> status_of(std::string_view process, std::string_view name) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    return found;
  }
  return {};
}

/// Returns the guard's parent, if it is the process that the guard names. A guard that has lost its daemon
/// has another parent. The daemon knows its number in its own namespace.
std::optional<pid_t> daemon_of(const std::string& guard, const std::string& named, const MountEntry& mount) {
  const auto parent = status_of(guard, "PPid:");
  if (parent.empty()) return std::nullopt;
  const auto numbers = status_of(parent.front(), "NSpid:");
  if (numbers.empty() || numbers.back() != named) return std::nullopt;
  const auto is_of_user = [&](std::string_view process) {
    const auto users = status_of(process, "Uid:");  // real, effective, saved, of files
    return users.size() == 4 && mount.user() && number_in<std::uint32_t>(users[1]) == mount.user();
  };
  if (!is_of_user(guard) || !is_of_user(parent.front())) return std::nullopt;
  return number_in<pid_t>(parent.front());
}

}  // namespace

std::optional<std::uint32_t> MountEntry::user() const {
  constexpr std::string_view kUser = ",user_id=";
  const std::size_t at = options.find(kUser);
  if (at == options.npos) return std::nullopt;
  const std::string_view behind = std::string_view(options).substr(at + kUser.size());
  return number_in<std::uint32_t>(behind.substr(0, behind.find(',')));
}

std::optional<MountEntry> mount_of_line(std::string_view line) {
  // ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS
  constexpr std::ptrdiff_t kTagsAt = 6;
  constexpr std::ptrdiff_t kBehindTags = 4;
  const std::vector<std::string_view> fields = fields_of(line);
  if (std::ssize(fields) < kTagsAt + kBehindTags) return std::nullopt;
  const auto hyphen = std::find(fields.begin() + kTagsAt, fields.end(), "-");
  if (fields.end() - hyphen < kBehindTags) return std::nullopt;
  return MountEntry{.id = std::string(fields[0]),
                    .device = std::string(fields[2]),
                    .path = unescaped(fields[4]),
                    .flags = std::string(fields[5]),
                    .type = std::string(hyphen[1]),
                    .source = unescaped(hyphen[2]),
                    .options = std::string(hyphen[3])};
}

std::vector<MountEntry> mounts() {
  std::ifstream table("/proc/self/mountinfo");
  std::vector<MountEntry> all;
  for (std::string line; std::getline(table, line);) {
    if (auto entry = mount_of_line(line)) all.push_back(std::move(*entry));
  }
  return all;
}

std::optional<MountEntry> mounted_at(const std::filesystem::path& path) {
  std::optional<MountEntry> found;
  for (MountEntry& entry : mounts()) {
    if (entry.path.native() == path.native()) found = std::move(entry);
  }
  return found;
}

std::vector<std::optional<pid_t>> find_daemons(std::span<const MountEntry> mounts) {
  using Numbers = std::pair<std::string_view, std::string_view>;  // id and device
  std::map<Numbers, std::size_t> by_numbers;
  for (std::size_t at = 0; at < mounts.size(); ++at)
    by_numbers.emplace(Numbers(mounts[at].id, mounts[at].device), at);
  std::vector<std::optional<pid_t>> daemons(mounts.size());
  std::error_code failed;
  for (std::filesystem::directory_iterator entry("/proc", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string process = entry->path().filename().string();
    if (!number_in<pid_t>(process)) continue;
    const std::vector<std::string> words = command_line_of(process);
    if (words.size() != kGuardArguments || words[0] != kGuardName) continue;
    const auto found = by_numbers.find(Numbers(words[2], words[4]));
    if (found == by_numbers.end() || daemons[found->second]) continue;
    daemons[found->second] = daemon_of(process, words[1], mounts[found->second]);
  }
  return daemons;
}

std::optional<pid_t> find_daemon(const MountEntry& mount) {
  return find_daemons({&mount, 1}).front();
}

}  // namespace stfs
