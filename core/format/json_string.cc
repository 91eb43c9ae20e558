// Escapes text for JSON and for messages.
#include "core/format/json_string.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/base/utf8.h"

namespace stfs {
namespace {

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
  if (static_cast<std::uint8_t>(c) < 0x20) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
  } else {
    out += c;
  }
}

void append_hex(std::string& out, char c) {
  fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<std::uint8_t>(c));
}

// JSON allows DEL unescaped, but a terminal acts on it.
void append_visible(std::string& out, char c) {
  if (c == '\x7f') {
    append_hex(out, c);
  } else {
    append_escaped(out, c);
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) append_escaped(out, c);
  out += '"';
}

std::string in_quotes(std::string_view text) {
  std::size_t end = std::min(text.size(), kQuotedBytes);
  // Do not cut a character in the middle. No character needs more than three steps back; longer runs are not
  // UTF-8.
  for (int i = 0; i < 3 && end < text.size() && (text[end] & 0xC0) == 0x80; ++i) --end;
  std::string out = "\"";
  for (std::size_t at = 0; at < end;) {
    const std::size_t valid = valid_utf8_prefix(text.substr(at, end - at));
    for (const char c : text.substr(at, valid)) append_visible(out, c);
    at += valid;
    if (at < end) append_hex(out, text[at++]);
  }
  if (end < text.size()) return fmt::format("{}...\" ({} bytes)", out, text.size());
  return out += '"';
}

}  // namespace stfs
