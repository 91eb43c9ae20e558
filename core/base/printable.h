// Makes text from untrusted files safe to show: in the log, on a terminal, and in JSON that a program prints.
//
// Names, metadata and paths may hold any characters: escape sequences that repaint the terminal, line feeds
// that forge a second line, marks that reverse the direction of the text. One table says which characters are
// escaped. Control characters (U+0000 to U+001F, U+007F to U+009F), marks of direction and of width, and
// separators of lines are in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stfs {

/// The form of an escape.
enum class EscapeForm : std::uint8_t {
  Short,  // `\n`, `\t`, `\r`, `\xHH` below U+0080, `\uHHHH`, `\UHHHHHHHH`
  Json,   // `\b`, `\f`, `\n`, `\r`, `\t`, `\uHHHH`, and two of these above U+FFFF
};

/// Appends the text with these characters escaped. Bytes that are not valid UTF-8 become `\xHH`.
/// @param also  further ASCII characters that get a backslash.
void append_printable(std::string& out, std::string_view text, EscapeForm form, std::string_view also = {});

/// Returns the text in the short form. Backslashes stay.
std::string printable(std::string_view text);

/// Escapes these characters in a text that is valid JSON but for bytes that are not UTF-8, which become
/// U+FFFD. A reader of the JSON gets the same strings. ASCII control characters stay: in JSON these are white
/// space between values.
std::string printable_json(std::string json);

}  // namespace stfs
