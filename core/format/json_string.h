// Writes text as a JSON string, for headers and for messages. A name from a file must not break a message's
// line, nor reach the terminal as a control sequence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

/// Appends text, quoted and escaped as the reference does (serde_json): it escapes the quote, the backslash
/// and control characters, and keeps every other byte.
void append_json_string(std::string& out, std::string_view text);

/// Returns the text that the inside of a JSON string stands for. The string must be valid
/// (core/format/json_syntax.h). Of any other string the text means nothing.
std::string unescaped_json(std::string_view inside);

/// The longest part of a name that a message shows.
inline constexpr std::size_t kQuotedBytes = 100;

/// Returns `"name"` for a message. Escapes as above, and also what core/base/printable.h escapes. Of a long
/// text it shows the beginning and the size: `"aaaa..." (5000 bytes)`.
std::string in_quotes(std::string_view text);

}  // namespace stfs
