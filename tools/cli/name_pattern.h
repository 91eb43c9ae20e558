// Renames by pattern: each * of the old name matches some text, which replaces a * of the new name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stfs::tools {

/// Returns the new name, if `from` matches the whole name; nothing otherwise. Each * matches as little as
/// possible, and all other characters match themselves. Both patterns must have the same number of *.
std::optional<std::string> renamed(std::string_view name, std::string_view from, std::string_view to);

}  // namespace stfs::tools
