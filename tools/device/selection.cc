// Distinguishes slices from patterns.
#include "tools/device/selection.h"

#include <fnmatch.h>

#include <algorithm>

namespace stfs::device {
namespace {

/// Accepts integers, ranges, "..." and commas. parse_slice() later reports mistakes in them.
bool reads_as_slice(std::string_view text) {
  constexpr std::string_view kOthers = ":,. -+";
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!is_digit(text[at]) && kOthers.find(text[at]) == std::string_view::npos) return false;
    // "0-9" is a pattern's range of characters.
    if (text[at] == '-' && at > 0 && is_digit(text[at - 1])) return false;
  }
  return !text.empty();
}

}  // namespace

bool matches_name(const std::string& pattern, std::string_view name) {
  if (pattern == name) return true;
  std::string text(name);
  std::replace(text.begin(), text.end(), '\0', '\1');  // fnmatch would stop at a NUL
  return ::fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

Selection parse_selection(std::string_view text) {
  const std::size_t bracket = text.rfind('[');
  if (bracket == std::string_view::npos || !text.ends_with(']')) return {std::string(text), std::nullopt};
  const std::string_view inner = text.substr(bracket + 1, text.size() - bracket - 2);
  if (!reads_as_slice(inner)) return {std::string(text), std::nullopt};
  return {std::string(text.substr(0, bracket)), std::string(inner)};
}

}  // namespace stfs::device
