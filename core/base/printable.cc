#include "core/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "core/base/utf8.h"

namespace stfs {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
constexpr char32_t kFirstNoAscii = 0x80;
constexpr char32_t kDelete = 0x7f;

/// The characters that are escaped.
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

/// Returns the letter after the backslash, or 0 if the form has no letter for the character.
char letter_of(char32_t character, EscapeForm form) {
  switch (character) {
    case '\n': return 'n';
    case '\t': return 't';
    case '\r': return 'r';
    case '\b': return form == EscapeForm::Json ? 'b' : '\0';
    case '\f': return form == EscapeForm::Json ? 'f' : '\0';
    default: return '\0';
  }
}

void append_escape(std::string& out, char32_t character, EscapeForm form) {
  constexpr std::uint32_t kPlaneTwo = 0x10000;
  const auto number = static_cast<std::uint32_t>(character);
  const auto to = std::back_inserter(out);
  if (const char letter = letter_of(character, form); letter != '\0') {
    out += '\\';
    out += letter;
  } else if (form == EscapeForm::Short && character < kFirstNoAscii) {
    fmt::format_to(to, "\\x{:02x}", number);
  } else if (number < kPlaneTwo) {
    fmt::format_to(to, "\\u{:04x}", number);
  } else if (form == EscapeForm::Short) {
    fmt::format_to(to, "\\U{:08x}", number);
  } else {
    const std::uint32_t rest = number - kPlaneTwo;
    fmt::format_to(to, "\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
  }
}

/// Calls `of_character(character, its bytes)` for each character, and `of_byte(byte)` for each byte that is
/// not UTF-8.
template <class OfCharacter, class OfByte>
void for_each_character(std::string_view text, OfCharacter&& of_character, OfByte&& of_byte) {
  while (!text.empty()) {
    std::string_view valid = text.substr(0, valid_utf8_prefix(text));
    text.remove_prefix(valid.size());
    while (!valid.empty()) {
      const Utf8Character next = first_of_utf8(valid);
      of_character(next.character, valid.substr(0, next.size_bytes));
      valid.remove_prefix(next.size_bytes);
    }
    if (text.empty()) return;
    of_byte(static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
}

}  // namespace

void append_printable(std::string& out, std::string_view text, EscapeForm form, std::string_view also) {
  for_each_character(
      text,
      [&](char32_t character, std::string_view bytes) {
        if (is_hidden(character)) return append_escape(out, character, form);
        if (bytes.size() == 1 && also.find(bytes.front()) != also.npos) out += '\\';
        out += bytes;
      },
      [&](unsigned byte) { fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte); });
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_printable(out, text, EscapeForm::Short);
  return out;
}

std::string printable_json(std::string json) {
  const auto is_plain = [](char c) { return static_cast<unsigned char>(c) < kDelete; };
  if (std::all_of(json.begin(), json.end(), is_plain)) return json;
  std::string out;
  out.reserve(json.size());
  for_each_character(
      json,
      [&](char32_t character, std::string_view bytes) {
        if (character >= kDelete && is_hidden(character))
          return append_escape(out, character, EscapeForm::Json);
        out += bytes;
      },
      [&](unsigned) { out += kReplacement; });
  return out;
}

}  // namespace stfs
