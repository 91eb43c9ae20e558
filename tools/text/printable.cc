// Escapes names, and measures Unicode text for the terminal.
#include "tools/text/printable.h"

#include <algorithm>
#include <cwchar>

#include "core/base/utf8.h"

namespace stfs::tools {
std::string printable_name(std::string_view name) {
  if (name.empty()) return "\"\"";
  std::string result;
  const bool leading_space = name.front() == ' ';
  const bool trailing_space = name.size() > 1 && name.back() == ' ';
  if (leading_space) result += "\\x20";
  const std::string_view inside = name.substr(leading_space, name.size() - leading_space - trailing_space);
  append_printable(result, inside, EscapeForm::Short, "\\");
  if (trailing_space) result += "\\x20";
  return result;
}

std::size_t display_width(std::string_view text) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), ascii)) return text.size();
  std::size_t width = 0;
  while (!text.empty()) {
    const Utf8Character next = first_of_utf8(text);
    // wcwidth knows wide and combining characters if main has set a UTF-8 locale. It returns -1 for unknown
    // characters.
    const int columns = ::wcwidth(static_cast<wchar_t>(next.character));
    width += columns < 0 ? 1U : static_cast<unsigned>(columns);
    text.remove_prefix(next.size_bytes);
  }
  return width;
}

}  // namespace stfs::tools
