// Parses rules, and chooses between them.
#include "tools/device/device_rules.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>

#include "core/base/absolute_path.h"
#include "core/base/unique_fd.h"
#include "core/storage/group_members.h"
#include "core/storage/trusted_links.h"
#include "tools/device/selection.h"
#include "tools/text/printable.h"

namespace stfs::device {
namespace {

constexpr std::string_view kAction = "read rules";
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// Removes the first word from the text and returns it.
std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
  text = trimmed(text.substr(word.size()));
  return word;
}

tl::unexpected<Error> refuse(const std::string& why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, why);
}

Result<std::vector<Device>> parse_devices(std::string_view text) {
  std::vector<Device> devices;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    auto device = parse_device(trimmed(text.substr(begin, end - begin)));
    RETURN_IF_ERROR(device);
    if (std::ranges::find(devices, *device) != devices.end()) {
      return refuse(device->name() + ": is named twice");
    }
    devices.push_back(std::move(*device));
    begin = end + 1;
  }
  return devices;
}

/// Removes a number and the character after it from the text.
bool take_number(std::string_view& text, std::uint32_t& number, char next) {
  text = trimmed(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text = trimmed(text.substr(static_cast<std::size_t>(end - text.data())));
  if (!text.starts_with(next)) return false;
  text = trimmed(text.substr(1));
  return true;
}

/// Parses `shard(DIMENSION, PART/PARTS)`.
Result<ShardRule> parse_shard(std::string_view text) {
  constexpr std::string_view kBegin = "shard(";
  ShardRule shard;
  std::string_view rest = text;
  const bool is_shard = rest.starts_with(kBegin);
  if (is_shard) rest.remove_prefix(kBegin.size());
  if (!is_shard || !take_number(rest, shard.dimension, ',') || !take_number(rest, shard.part, '/') ||
      !take_number(rest, shard.parts, ')') || !rest.empty()) {
    return refuse(fmt::format("{}: is not shard(DIMENSION, PART/PARTS)", tools::printable(text)));
  }
  if (shard.parts == 0 || shard.part == 0 || shard.part > shard.parts) {
    return refuse(fmt::format("{}: PART must be from 1 to PARTS", tools::printable(text)));
  }
  return shard;
}

/// Parses a line that is not empty and has no comment.
Result<DeviceRule> parse_rule(std::string_view line) {
  DeviceRule rule;
  std::string_view rest = line;
  rule.pattern = take_word(rest);
  // A list may have blanks after its commas: "cuda:0, cuda:1".
  std::string devices;
  do {
    devices += take_word(rest);
  } while (devices.ends_with(',') && !rest.empty());
  auto parsed = parse_devices(devices);
  RETURN_IF_ERROR(parsed);
  rule.devices = std::move(*parsed);
  if (rest.empty()) return rule;
  auto shard = parse_shard(rest);
  RETURN_IF_ERROR(shard);
  rule.shard = *shard;
  return rule;
}

/// A name may contain a '#', so a comment needs a blank before its '#'.
std::string_view without_comment(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1)) {
    if (at == 0 || kBlanks.find(line[at - 1]) != std::string_view::npos) return line.substr(0, at);
  }
  return line;
}

/// Another user may have made the name: nothing here waits for that user, or reads without end.
Result<std::string> read_rules(const FollowedFile& found, const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  if (S_ISDIR(found.status.st_mode)) return fail_system(EISDIR, path, kAction);
  // A process may never give its file of /proc, such as `environ`.
  struct statfs system {};
  if (::fstatfs(found.fd.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC)
    return fail(ErrorCode::InvalidArgument, EINVAL, path + ": is a file of /proc, which has no rules");
  const bool is_pipe = S_ISFIFO(found.status.st_mode);
  const uid_t owner = found.status.st_uid;
  if (is_pipe && owner != 0 && !is_same_user(owner, ::geteuid()))
    return fail(ErrorCode::System, EPERM, fmt::format("{}: is a pipe of user {}", path, owner));
  // A pipe of this user's own waits for its writer. Another user's lease would hold up an open without
  // O_NONBLOCK.
  const UniqueFd file = found.open(O_RDONLY | O_NOCTTY | (is_pipe ? 0 : O_NONBLOCK));
  if (!file) {
    return errno == EWOULDBLOCK
               ? fail(ErrorCode::Busy, EAGAIN, path + ": another process holds a lease on it: try again")
               : fail_system(errno, path, kAction);
  }
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got < 0) return fail_system(errno, path, kAction);
    if (text.size() + static_cast<std::size_t>(got) > kMostBytes)
      return fail(ErrorCode::InvalidArgument, EFBIG, path + ": a file of rules has at most 1 MiB");
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

Result<DeviceRules> DeviceRules::parse_device_list(std::string_view text) {
  auto devices = parse_devices(text);
  RETURN_IF_ERROR(devices);
  DeviceRules rules;
  rules.rules_.push_back({.pattern = "*", .devices = std::move(*devices), .shard = {}});
  return rules;
}

Result<DeviceRules> DeviceRules::parse(std::string_view text, const std::string& origin) {
  DeviceRules rules;
  for (std::size_t begin = 0, number = 1; begin <= text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(without_comment(text.substr(begin, end - begin)));
    begin = end + 1;
    if (line.empty()) continue;
    auto rule = parse_rule(line);
    if (!rule)
      return tl::unexpected(std::move(rule).error().within(fmt::format("{}: line {}", origin, number)));
    rules.rules_.push_back(std::move(*rule));
  }
  if (rules.rules_.empty()) return refuse(origin + ": has no rule: write PATTERN DEVICE in each line");
  return rules;
}

Result<DeviceRules> DeviceRules::read_file(const std::filesystem::path& path) {
  RETURN_IF_ERROR(check_local(path));
  const auto found = follow_trusted_links(AT_FDCWD, path);
  const int why = found ? 0 : found.error().errno_value;
  if (why == EXDEV || why == EACCES) return tl::unexpected(found.error());  // it names the link
  if (!found) return fail_system(why, path.string(), kAction);
  const auto text = read_rules(*found, path.string());
  RETURN_IF_ERROR(text);
  auto rules = parse(*text, path.string());
  // Another user may have linked a private file of this user there.
  if (!rules && S_ISREG(found->status.st_mode) && found->status.st_nlink > 1) {
    return refuse(path.string() +
                  ": is no file of rules; its text is not shown, because the file has several hard links");
  }
  return rules;
}

const DeviceRule* DeviceRules::rule_for(const std::string& name) const {
  const auto fits = [&](const DeviceRule& rule) { return matches_name(rule.pattern, name); };
  const auto found = std::ranges::find_if(rules_, fits);
  return found == rules_.end() ? nullptr : &*found;
}

}  // namespace stfs::device
