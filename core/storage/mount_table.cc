// Parses proc_pid_mountinfo(5).
#include "core/storage/mount_table.h"

#include <algorithm>
#include <charconv>
#include <fstream>
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

}  // namespace stfs
