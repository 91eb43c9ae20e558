// Archives for tests, as bytes: built without the code under test.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stfs::test {

/// Length, header and data put together, whether they make sense or not.
inline std::string archive_bytes(std::string_view header, std::string_view data) {
  std::string bytes;
  for (unsigned at = 0; at < 8; ++at)
    bytes += static_cast<char>(std::uint64_t{header.size()} >> (8 * at) & 0xff);
  bytes += header;
  bytes += data;
  return bytes;
}

}  // namespace stfs::test
