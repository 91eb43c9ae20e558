// Patterns of tensors' names with an optional slice at the end: `*.q_proj.weight[:128]`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stfs::device {

/// Matches like fnmatch(3). A pattern that equals the name always matches, even if it has special characters.
bool matches_name(const std::string& pattern, std::string_view name);

struct Selection {
  std::string pattern;
  std::optional<std::string> slice;  // without the brackets
};

/// Brackets at the end are a slice if their content has the form of a slice: `w[0]` and `w[:10]` are slices,
/// `layer[0-9]` is a pattern. A tensor whose name itself ends in brackets is found by the whole text
/// (plan.cc).
Selection parse_selection(std::string_view text);

}  // namespace stfs::device
