// Headers for tests, as JSON: built without the code under test.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stfs::test {

/// The JSON of one tensor's entry; `shape` is the inside of its brackets.
inline std::string entry(std::string_view dtype, std::string_view shape, std::uint64_t begin,
                         std::uint64_t end) {
  return "{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[" + std::string(shape) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// A header of `count` tensors "PREFIX0", "PREFIX1", ..., each of one byte.
inline std::string many_tensors(std::uint64_t count, std::string_view prefix) {
  std::string json = "{";
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i != 0) json += ',';
    json.append("\"")
        .append(prefix)
        .append(std::to_string(i))
        .append("\":")
        .append(entry("U8", "1", i, i + 1));
  }
  return json += '}';
}

}  // namespace stfs::test
