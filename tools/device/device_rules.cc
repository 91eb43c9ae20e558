// Parses rules, and chooses between them.
#include "tools/device/device_rules.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

#include "core/storage/trusted_links.h"
#include "tools/device/selection.h"
#include "tools/text/printable.h"

namespace stfs::device {
namespace {

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
  constexpr std::string_view kAction = "read rules";
  const auto found = follow_all_links(path);
  if (!found && found.error().errno_value == EXDEV) return tl::unexpected(found.error());
  if (!found) return fail_system(found.error().errno_value, path.string(), kAction);
  if (S_ISDIR(found->status.st_mode)) return fail_system(EISDIR, path.string(), kAction);
  // Opens the file that was checked, even if the path leads to another file now. The file may be a pipe.
  std::ifstream in(fmt::format("/proc/self/fd/{}", found->fd.get()));
  if (!in) return fail_system(errno, path.string(), kAction);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return fail_system(EIO, path.string(), kAction);
  return parse(text, path.string());
}

const DeviceRule* DeviceRules::rule_for(const std::string& name) const {
  const auto fits = [&](const DeviceRule& rule) { return matches_name(rule.pattern, name); };
  const auto found = std::ranges::find_if(rules_, fits);
  return found == rules_.end() ? nullptr : &*found;
}

}  // namespace stfs::device
