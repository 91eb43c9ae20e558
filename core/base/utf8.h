// Validates UTF-8 by RFC 3629, without overlong forms and surrogates.
#pragma once

#include <cstddef>
#include <string_view>

namespace stfs {

/// The number of leading bytes that are complete, valid UTF-8; text.size() if the whole text is valid.
std::size_t valid_utf8_prefix(std::string_view text);

struct Utf8Character {
  char32_t character = 0;
  std::size_t size_bytes = 1;
};
/// The first character of a text that is valid UTF-8 and not empty.
Utf8Character first_of_utf8(std::string_view text);

inline bool is_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

}  // namespace stfs
