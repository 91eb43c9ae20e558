// The digest of a sequence of bytes does not depend on the pieces, and differs from the digests of other
// sequences.
#include "tools/device/digest.h"

#include <set>

#include "tests/support/catch.h"
#include "tests/support/upload_model.h"

using namespace stfs;
using namespace stfs::device;

namespace {

std::uint64_t digest(const std::string& text) {
  return digest_of(std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("a digest is the same however the bytes were cut at blocks", "[tools][upload]") {
  const std::string text = test::pattern_bytes(5 * kDigestBlockBytes + 77, 1);
  const auto bytes = std::as_bytes(std::span(text));
  const std::uint64_t whole = digest_of(bytes);
  for (std::uint64_t blocks = 1; blocks <= 6; ++blocks) {
    // The pieces come from the last to the first: their order does not matter.
    std::uint64_t sum = 0;
    for (std::uint64_t pieces = (6 + blocks - 1) / blocks; pieces-- > 0;) {
      const std::uint64_t begin = pieces * blocks * kDigestBlockBytes;
      const std::uint64_t size_bytes =
          std::min<std::uint64_t>(blocks * kDigestBlockBytes, bytes.size() - begin);
      sum += digest_sum(bytes.subspan(begin, size_bytes), pieces * blocks);
    }
    CHECK(digest_end(sum, bytes.size()) == whole);
  }
}

TEST_CASE("any one byte that is flipped is found", "[tools][upload][exhaustive]") {
  std::string text = test::pattern_bytes(kDigestBlockBytes + 3001, 2);
  const std::uint64_t whole = digest(text);
  for (std::size_t at = 0; at < text.size(); at += at % 251 == 0 ? 1 : 37) {
    for (const int mask : {1, 128, 255}) {
      text[at] = static_cast<char>(text[at] ^ mask);
      REQUIRE(digest(text) != whole);
      text[at] = static_cast<char>(text[at] ^ mask);
    }
  }
  CHECK(digest(text) == whole);
}

TEST_CASE("lengths, zeros and exchanged places give digests of their own", "[tools][upload]") {
  std::set<std::uint64_t> seen;
  for (const std::size_t size_bytes :
       {0U, 1U, 7U, 8U, 9U, 2047U, 2048U, 2049U, 65535U, 65536U, 65537U, 131072U}) {
    CHECK(seen.insert(digest(std::string(size_bytes, '\0'))).second);
  }
  const std::string text = test::pattern_bytes(3 * kDigestBlockBytes, 3);
  CHECK(seen.insert(digest(text)).second);
  const auto exchanged = [&](std::size_t from, std::size_t to, std::size_t size_bytes) {
    std::string other = text;
    std::swap_ranges(other.begin() + static_cast<long>(from),
                     other.begin() + static_cast<long>(from + size_bytes),
                     other.begin() + static_cast<long>(to));
    return digest(other);
  };
  CHECK(seen.insert(exchanged(0, kDigestBlockBytes, kDigestBlockBytes)).second);  // blocks
  CHECK(seen.insert(exchanged(0, kDigestRowBytes, kDigestRowBytes)).second);      // rows of a block
  CHECK(seen.insert(exchanged(0, 8, 8)).second);                                  // lanes of a row
}

TEST_CASE("a digest is what it was: devices and versions must agree", "[tools][upload]") {
  CHECK(digest("") == 0x7D6E4AC38B2B1BE2U);
  CHECK(digest(test::pattern_bytes(100'000, 4)) == 0x1AFF1B5602B7AA45U);
}
