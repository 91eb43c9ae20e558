// The checksums of published versions, compared with known values, and computed in pieces of any size.
#include "tools/sync/checksum_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

using sync::ChecksumFormat;
using sync::ChecksumStream;

std::string checksum_of(ChecksumFormat format, std::string_view text) {
  ChecksumStream stream(format);
  stream.update(bytes_of(text));
  return stream.hex();
}

std::string mixed_bytes(std::size_t size) {
  RandomChoices choices(size);
  std::string text(size, '\0');
  for (char& byte : text) byte = static_cast<char>(choices.below(256));
  return text;
}

/// RFC 1950, byte by byte.
std::string plain_adler32(std::string_view text) {
  std::uint32_t first = 1;
  std::uint32_t second = 0;
  for (const char byte : text) {
    first = (first + static_cast<unsigned char>(byte)) % 65521;
    second = (second + first) % 65521;
  }
  return fmt::format("{:08x}", second << 16U | first);
}

}  // namespace

TEST_CASE("checksums have the answers that other libraries give", "[tools][sync]") {
  CHECK(checksum_of(ChecksumFormat::Xxh3_128, "") == "99aa06d3014798d86001c324468d497f");
  CHECK(checksum_of(ChecksumFormat::Xxh3_128, "safetensors") == "71623c9db374ce091e79e212e81b1d81");
  CHECK(checksum_of(ChecksumFormat::Adler32, "") == "00000001");
  CHECK(checksum_of(ChecksumFormat::Adler32, "Wikipedia") == "11e60398");
}

TEST_CASE("adler32 is right for every size and at its limits", "[tools][sync]") {
  for (const std::size_t size : {1U, 31U, 32U, 33U, 5535U, 5536U, 5537U, 70001U}) {
    const std::string text = mixed_bytes(size);
    CHECK(checksum_of(ChecksumFormat::Adler32, text) == plain_adler32(text));
    const std::string highest(size, '\xff');
    CHECK(checksum_of(ChecksumFormat::Adler32, highest) == plain_adler32(highest));
  }
}

TEST_CASE("checksums do not depend on the sizes of pieces", "[tools][sync]") {
  const std::string text = mixed_bytes(20000);
  for (const ChecksumFormat format : {ChecksumFormat::Xxh3_128, ChecksumFormat::Adler32}) {
    const std::string whole = checksum_of(format, text);
    for (const std::size_t piece : {1U, 7U, 64U, 5000U}) {
      ChecksumStream stream(format);
      for (std::size_t at = 0; at < text.size(); at += piece) {
        stream.update(bytes_of(std::string_view(text).substr(at, piece)));
      }
      CHECK(stream.hex() == whole);
    }
  }
}

TEST_CASE("names of checksum formats", "[tools][sync]") {
  for (const ChecksumFormat format : {ChecksumFormat::Xxh3_128, ChecksumFormat::Adler32}) {
    const auto parsed = sync::parse_checksum_format(name_of(format));
    REQUIRE(parsed);
    CHECK(*parsed == format);
  }
  for (const char* wrong : {"", "xxh3", "XXH3-128", "md5", "adler32 ", "crc32\n"}) {
    const auto parsed = sync::parse_checksum_format(wrong);
    CHECK(errno_of(parsed) == EINVAL);
    CHECK(contains(parsed.error().message, "expected xxh3-128, adler32 or blake3"));
  }
}

TEST_CASE("blake3 has its known answer, or its library is named", "[tools][sync]") {
  const auto parsed = sync::parse_checksum_format("blake3");
  if (parsed) {
    CHECK(checksum_of(*parsed, "") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  } else {
    CHECK(errno_of(parsed) == EOPNOTSUPP);
    CHECK(contains(parsed.error().message, "libblake3"));
  }
}

TEST_CASE("a checksum has exactly its digits", "[tools][sync]") {
  CHECK(sync::is_checksum(ChecksumFormat::Adler32, "0a1B2c3D"));
  for (const char* wrong : {"", "0a1b2c3", "0a1b2c3d4", "0a1b2c3g", "0x1b2c3d", "0a1b2c3 "}) {
    CHECK_FALSE(sync::is_checksum(ChecksumFormat::Adler32, wrong));
  }
  CHECK(sync::is_checksum(ChecksumFormat::Xxh3_128, std::string(32, 'f')));
  CHECK_FALSE(sync::is_checksum(ChecksumFormat::Xxh3_128, std::string(31, 'f')));
  CHECK(sync::is_checksum(ChecksumFormat::Blake3, std::string(64, '0')));
  CHECK(sync::is_same_checksum("0A1b", "0a1B"));
  CHECK_FALSE(sync::is_same_checksum("0a1b", "0a1c"));
  CHECK_FALSE(sync::is_same_checksum("0a1b", "0a1b0"));
}

}  // namespace stfs::test
