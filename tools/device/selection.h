// Patterns of tensors' names, with a slice at their end or without: `*.q_proj.weight[:128]`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stfs::upload {

/// As fnmatch(3); a name that is spelled exactly always fits, even if it reads as a pattern for other names.
bool matches_name(const std::string& pattern, std::string_view name);

struct Selection {
  std::string pattern;
  std::optional<std::string> slice;  // without the brackets
};

/// Brackets at the end are a slice where what stands in them is one: `w[0]` and `w[:10]` are slices,
/// `layer[0-9]` is a pattern. A tensor whose own name ends in brackets is found by the whole text (plan.cc).
Selection parse_selection(std::string_view text);

}  // namespace stfs::upload
