// Writes text as a JSON string, for headers and for messages. A name from a file must not break a message's
// line, and must not reach the terminal as a control sequence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

/// Appends text, quoted and escaped as the reference does (serde_json): it escapes the quote, the backslash
/// and control characters, and keeps every other byte.
void append_json_string(std::string& out, std::string_view text);

/// Converts the bytes between the quotes of a JSON string to its text. The string must be valid
/// (core/format/json_syntax.h). The result for an invalid string is unspecified.
std::string unescaped_json(std::string_view inside);

/// The longest part of a name that a message shows.
inline constexpr std::size_t kQuotedBytes = 100;

/// Returns `"name"` for a message. Escapes as above, and also the characters of core/base/printable.h. Shows
/// the beginning and the size of a long text: `"aaaa..." (5000 bytes)`.
std::string in_quotes(std::string_view text);

}  // namespace stfs
