// Makes names from untrusted files safe to show in the columns of a terminal (core/base/printable.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/printable.h"

namespace stfs::tools {

using stfs::printable;

/// Does the same as printable() for a name in a column, so that two different names never look alike. A
/// backslash becomes `\\`, a space at either end `\x20`, and the empty name `""`.
std::string printable_name(std::string_view name);

/// Returns the number of columns that the text takes on a terminal. The text must come from printable() or
/// printable_name().
std::size_t display_width(std::string_view text);

}  // namespace stfs::tools
