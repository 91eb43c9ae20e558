#include "core/format/json_string.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>

#include "core/base/printable.h"

namespace stfs {
namespace {

/// Appends a quote, a backslash or a control character.
void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
}

/// Four hexadecimal digits.
char32_t code_unit(std::string_view digits) {
  unsigned unit = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
  return unit;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  const auto add_rest = [&](int bits) {
    for (; bits >= 0; bits -= 6) add(0x80 | ((code_point >> bits) & 0x3F));
  };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | (code_point >> 6));
    add_rest(0);
  } else if (code_point < 0x10000) {
    add(0xE0 | (code_point >> 12));
    add_rest(6);
  } else {
    add(0xF0 | (code_point >> 18));
    add_rest(12);
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  const auto is_escaped = [](char c) { return c == '"' || c == '\\' || static_cast<std::uint8_t>(c) < 0x20; };
  out += '"';
  for (;;) {
    const auto plain = std::ranges::find_if(text, is_escaped) - text.begin();
    out += text.substr(0, static_cast<std::size_t>(plain));
    text.remove_prefix(static_cast<std::size_t>(plain));
    if (text.empty()) break;
    append_escaped(out, text.front());
    text.remove_prefix(1);
  }
  out += '"';
}

std::string unescaped_json(std::string_view inside) {
  std::string text;
  text.reserve(inside.size());
  const auto skip = [&](std::size_t bytes) { inside.remove_prefix(std::min(bytes, inside.size())); };
  for (std::size_t escape = inside.find('\\'); escape != inside.npos; escape = inside.find('\\')) {
    text += inside.substr(0, escape);
    skip(escape + 1);
    const char kind = inside.empty() ? '\\' : inside.front();
    skip(1);
    switch (kind) {
      case 'b': text += '\b'; break;
      case 'f': text += '\f'; break;
      case 'n': text += '\n'; break;
      case 'r': text += '\r'; break;
      case 't': text += '\t'; break;
      case 'u': {
        char32_t code_point = code_unit(inside.substr(0, 4));
        skip(4);
        if (code_point >= 0xD800 && code_point < 0xDC00) {  // a second escape has the other half
          skip(2);
          code_point = 0x10000 + ((code_point - 0xD800) << 10) + (code_unit(inside.substr(0, 4)) - 0xDC00);
          skip(4);
        }
        append_utf8(text, code_point);
        break;
      }
      default: text += kind; break;  // a quote, a slash, a backslash
    }
  }
  return text += inside;
}

std::string in_quotes(std::string_view text) {
  std::size_t end = std::min(text.size(), kQuotedBytes);
  // Do not cut a character in the middle. No character needs more than three steps back; longer runs are not
  // UTF-8.
  for (int i = 0; i < 3 && end < text.size() && (text[end] & 0xC0) == 0x80; ++i) --end;
  std::string out = "\"";
  append_printable(out, text.substr(0, end), EscapeForm::Json, "\"\\");
  if (end < text.size()) return fmt::format("{}...\" ({} bytes)", out, text.size());
  return out += '"';
}

}  // namespace stfs
