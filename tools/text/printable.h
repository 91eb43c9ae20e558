// Makes text from untrusted files safe to show on a terminal.
//
// Tensor names, metadata and paths may hold any Unicode: escape sequences that repaint the terminal, line
// feeds that forge a second row, marks that reverse the direction of the text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stfs::tools {

/// Returns the text with each invisible or control character spelled out: `\n`, `\t`, `\r`, `\xHH` for
/// control characters and for bytes that are not valid UTF-8, `\uHHHH` for marks without a glyph. Backslashes
/// stay.
std::string printable(std::string_view text);

/// Does the same for a name in a column, so that two different names never look alike. A backslash becomes
/// `\\`, a space at either end `\x20`, and the empty name `""`.
std::string printable_name(std::string_view name);

/// Returns the columns that the text takes on a terminal. The text must come from printable() or
/// printable_name().
std::size_t display_width(std::string_view text);

}  // namespace stfs::tools
