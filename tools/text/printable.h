// Text of strangers, made safe to show.
//
// Tensor names, metadata and paths hold any Unicode: escape sequences that repaint the terminal, line
// feeds that forge a second row, marks that turn the direction of writing around.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stfs::tools {

/// The text with everything invisible or commanding spelled out: `\n`, `\t`, `\r`, `\xHH` for control
/// characters and bytes that are no UTF-8, `\uHHHH` for marks without a glyph. Backslashes stay.
std::string printable(std::string_view text);

/// The same for a name in a column, so that two names never look alike: a backslash becomes `\\`, a
/// space at either end `\x20`, and the empty name `""`.
std::string printable_name(std::string_view name);

/// Columns that text takes on a terminal; the text has come out of printable() or printable_name().
std::size_t display_width(std::string_view text);

}  // namespace stfs::tools
