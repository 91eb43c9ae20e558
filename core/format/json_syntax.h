// Decides whether a text is JSON. If the text is not JSON, says where and why, in constant memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

/// The longest number that find_json_error() accepts, in bytes.
inline constexpr std::size_t kMaxNumberBytes = 1'000'000;

struct JsonError {
  std::uint64_t position = 0;  // of the first wrong byte
  std::string why;
};

/// Which numbers are allowed: all, or those that a double can hold.
enum class Numbers : std::uint8_t { All, Doubles };

/// Returns the first violation of RFC 8259 in the text, or nothing. Does not check UTF-8 (core/base/utf8.h).
/// Of numbers it checks the form, the length and, if asked to, the size.
/// @param max_depth  how many objects and arrays may be open at a time.
std::optional<JsonError> find_json_error(std::string_view text, unsigned max_depth,
                                         Numbers numbers = Numbers::All);

}  // namespace stfs
