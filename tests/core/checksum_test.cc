// Compares XXH128 with the values that xxh128sum prints.
#include "core/base/checksum.h"

#include <string_view>

#include "tests/support/catch.h"

using stfs::Checksum;

namespace {

std::string hex_of(std::string_view content, std::size_t piece_bytes) {
  Checksum sum;
  for (std::size_t at = 0; at < content.size(); at += piece_bytes) {
    const std::string_view piece = content.substr(at, piece_bytes);
    sum.update(std::as_bytes(std::span(piece.data(), piece.size())));
  }
  return sum.hex();
}

}  // namespace

TEST_CASE("the checksum is XXH128 in its canonical form", "[core][checksum]") {
  // `printf abc | xxh128sum` prints the second one.
  CHECK(hex_of("", 1) == "99aa06d3014798d86001c324468d497f");
  CHECK(hex_of("abc", 3) == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("the checksum does not depend on the pieces in which the bytes come", "[core][checksum]") {
  std::string content(100'000, '\0');
  for (std::size_t at = 0; at < content.size(); ++at) content[at] = static_cast<char>(at * at >> 5U);
  const std::string whole = hex_of(content, content.size());
  CHECK(whole.size() == 32);
  for (const std::size_t piece_bytes : {1U, 7U, 240U, 241U, 4096U, 99'999U}) {
    CHECK(hex_of(content, piece_bytes) == whole);
  }
  content[50'000] = static_cast<char>(content[50'000] + 1);
  CHECK(hex_of(content, 4096) != whole);
}

TEST_CASE("asking for the sum does not end it, and empty pieces count for nothing", "[core][checksum]") {
  Checksum sum;
  CHECK(sum.hex() == hex_of("", 1));
  sum.update(std::as_bytes(std::span("ab", 2)));
  CHECK(sum.hex() == hex_of("ab", 2));
  sum.update({});
  sum.update(std::as_bytes(std::span("c", 1)));
  CHECK(sum.hex() == hex_of("abc", 3));
}
