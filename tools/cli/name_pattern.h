// Renames by pattern: each * of the old names stands for some text, which takes the place of a * in the new.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stfs::tools {

/// The new name, if `from` matches the whole name; nothing otherwise. Each * matches as little as it can, and
/// all other characters match themselves. Both patterns must have equally many *.
std::optional<std::string> renamed(std::string_view name, std::string_view from, std::string_view to);

}  // namespace stfs::tools
