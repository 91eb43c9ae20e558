// Where and why a text is not JSON, in our own words and in constant memory.
//
// Headers are read by nlohmann_json; this is for those that it refuses. Its own verdict on a text cites
// the last token with the white space around it, several times over: a header of 100 MB of line feeds
// and a stray letter took it 2.7 GB and half a minute to refuse.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

/// Longest number that find_json_error lets through, in bytes.
inline constexpr std::size_t kMaxNumberBytes = 1'000'000;

struct JsonError {
  std::uint64_t position = 0;  // of the first byte that doesn't fit
  std::string why;
};

/// The first violation of RFC 8259 in the text, or nothing. UTF-8 is not looked at (core/base/utf8.h), and
/// a number only for its form and length.
/// @param max_depth  objects and arrays that may be open at a time.
std::optional<JsonError> find_json_error(std::string_view text, unsigned max_depth);

}  // namespace stfs
