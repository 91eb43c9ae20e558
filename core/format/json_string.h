// Text as a JSON string: in headers that we write, and in messages, where a name taken from a file must
// neither break the line nor reach the terminal as a control sequence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

/// Appends text, quoted and escaped as the reference writes it (serde_json): quote, backslash and
/// control characters are escaped, every other byte stays as it is.
void append_json_string(std::string& out, std::string_view text);

/// Longest part of a name that a message shows.
inline constexpr std::size_t kQuotedBytes = 100;

/// `"name"` for a message, escaped as above, bytes that are no UTF-8 and DEL too; of a long one the
/// beginning and its size: `"aaaa..." (5000 bytes)`.
std::string in_quotes(std::string_view text);

}  // namespace stfs
