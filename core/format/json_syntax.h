// Decides whether a text is JSON. If it is not, gives the place and the reason. Takes constant memory.
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

/// The numbers that are allowed: all, or only numbers that a double can hold.
enum class Numbers : std::uint8_t { All, Doubles };

/// Returns the first violation of RFC 8259 in the text, or nothing. Does not check UTF-8 (core/base/utf8.h).
/// Checks the form and the length of numbers, and their size if `numbers` is Doubles.
/// @param max_depth  how many objects and arrays may be open at a time.
std::optional<JsonError> find_json_error(std::string_view text, unsigned max_depth,
                                         Numbers numbers = Numbers::All);

}  // namespace stfs
