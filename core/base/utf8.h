// What is UTF-8 and what is not: RFC 3629, without overlong forms and surrogates.
#pragma once

#include <cstddef>
#include <string_view>

namespace stfs {

/// Number of leading bytes that are whole, valid UTF-8; text.size() where all of it is.
std::size_t valid_utf8_prefix(std::string_view text);

inline bool is_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

}  // namespace stfs
