// Escapes and measures Unicode text for the terminal.
#include "tools/text/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cwchar>
#include <iterator>

#include "core/base/utf8.h"

namespace stfs::tools {
namespace {

struct Decoded {
  char32_t character = 0;
  std::size_t size_bytes = 1;
};

/// Decodes the first character of valid, non-empty UTF-8.
Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size_bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  char32_t character = lead & (0x7fU >> size_bytes);
  for (std::size_t at = 1; at < size_bytes; ++at) character = character << 6 | (byte(at) & 0x3fU);
  return {character, size_bytes};
}

/// Returns whether a character has no glyph of its own: controls, marks of direction and width, separators.
bool is_hidden(char32_t character) {
  struct Span {
    char32_t first, last;
  };
  constexpr std::array<Span, 12> kHidden = {{{0x00, 0x1f},
                                             {0x7f, 0x9f},
                                             {0xad, 0xad},
                                             {0x61c, 0x61c},
                                             {0x180e, 0x180e},
                                             {0x200b, 0x200f},
                                             {0x2028, 0x202e},
                                             {0x2060, 0x206f},
                                             {0xfeff, 0xfeff},
                                             {0xfff9, 0xfffb},
                                             {0x1d173, 0x1d17a},
                                             {0xe0000, 0xe007f}}};
  return std::any_of(kHidden.begin(), kHidden.end(),
                     [=](Span span) { return character >= span.first && character <= span.last; });
}

void append_escape(std::string& to, char32_t character) {
  const auto number = static_cast<std::uint32_t>(character);
  if (number == '\n') {
    to += "\\n";
  } else if (number == '\t') {
    to += "\\t";
  } else if (number == '\r') {
    to += "\\r";
  } else if (number < 0x80) {
    fmt::format_to(std::back_inserter(to), "\\x{:02x}", number);
  } else if (number < 0x10000) {
    fmt::format_to(std::back_inserter(to), "\\u{:04x}", number);
  } else {
    fmt::format_to(std::back_inserter(to), "\\U{:08x}", number);
  }
}

/// Appends valid UTF-8, escaped as requested.
void append_valid(std::string& to, std::string_view text, bool escape_backslash) {
  while (!text.empty()) {
    const Decoded next = decode(text);
    if (is_hidden(next.character)) {
      append_escape(to, next.character);
    } else if (next.character == '\\' && escape_backslash) {
      to += "\\\\";
    } else {
      to += text.substr(0, next.size_bytes);
    }
    text.remove_prefix(next.size_bytes);
  }
}

void append_printable(std::string& to, std::string_view text, bool escape_backslash) {
  while (!text.empty()) {
    const std::size_t valid_bytes = valid_utf8_prefix(text);
    append_valid(to, text.substr(0, valid_bytes), escape_backslash);
    text.remove_prefix(valid_bytes);
    if (text.empty()) return;
    fmt::format_to(std::back_inserter(to), "\\x{:02x}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  append_printable(result, text, false);
  return result;
}

std::string printable_name(std::string_view name) {
  if (name.empty()) return "\"\"";
  std::string result;
  const bool leading_space = name.front() == ' ';
  const bool trailing_space = name.size() > 1 && name.back() == ' ';
  if (leading_space) result += "\\x20";
  append_printable(result, name.substr(leading_space, name.size() - leading_space - trailing_space), true);
  if (trailing_space) result += "\\x20";
  return result;
}

std::size_t display_width(std::string_view text) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), ascii)) return text.size();
  std::size_t width = 0;
  while (!text.empty()) {
    const Decoded next = decode(text);
    // wcwidth knows wide and combining characters if main has set a UTF-8 locale; it returns -1 for unknown
    // ones.
    const int columns = ::wcwidth(static_cast<wchar_t>(next.character));
    width += columns < 0 ? 1U : static_cast<unsigned>(columns);
    text.remove_prefix(next.size_bytes);
  }
  return width;
}

}  // namespace stfs::tools
