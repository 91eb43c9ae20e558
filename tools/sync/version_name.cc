// Six digits, or more where a number needs them.
#include "tools/sync/version_name.h"

#include <fmt/format.h>

#include <charconv>

namespace stfs::sync {
namespace {

constexpr std::string_view kDirectoryPrefix = "weight_v";
constexpr std::size_t kMostDigits = 18;  // any such number fits 63 bits

}  // namespace

std::optional<VersionNumber> parse_version(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  if (text.empty() || text.size() > kMostDigits) return std::nullopt;
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return VersionNumber{std::string(text), number};
}

std::string version_text(std::uint64_t number) {
  return fmt::format("{:06}", number);
}

std::string version_directory_name(std::uint64_t number) {
  return std::string(kDirectoryPrefix) + version_text(number);
}

std::optional<VersionNumber> version_of_directory(std::string_view file_name) {
  if (!file_name.starts_with(kDirectoryPrefix)) return std::nullopt;
  auto version = parse_version(file_name.substr(kDirectoryPrefix.size()));
  if (!version || file_name != version_directory_name(version->number)) return std::nullopt;
  return version;
}

}  // namespace stfs::sync
