// Finds where and why a text is not JSON, with our own messages and in constant memory.
//
// nlohmann_json reads headers. This is for headers that it refuses. Its own message cites the last token with
// the white space around it, several times: for a header of 100 MB of line feeds and a stray letter it took
// 2.7 GB and half a minute.
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

/// Returns the first violation of RFC 8259 in the text, or nothing. Does not check UTF-8 (core/base/utf8.h),
/// and checks only the form and length of numbers.
/// @param max_depth  how many objects and arrays may be open at a time.
std::optional<JsonError> find_json_error(std::string_view text, unsigned max_depth);

}  // namespace stfs
