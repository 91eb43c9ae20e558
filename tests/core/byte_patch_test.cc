// Patches by bytes: a decoded patch gives the new content, for any mix of old and new bytes. A damaged patch
// is refused.
#include "core/journal/byte_patch.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/xxh3.h"
#include "tests/support/catch.h"
#include "tests/support/choices.h"

namespace stfs {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(test::Choices& choices, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(choices.below(256));
  return bytes;
}

/// Changes runs of bytes; one in `density` begins one.
Bytes changed(test::Choices& choices, Bytes bytes, std::size_t density) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (choices.one_in(density)) bytes[at] ^= static_cast<std::byte>(1 + choices.below(255));
  }
  return bytes;
}

Bytes applied(const BytePatch& patch, Bytes content, std::uint64_t offset) {
  patch.apply(content, offset);
  return content;
}

TEST_CASE("a patch makes the new content of the old one, and of any mix", "[core][journal]") {
  test::RandomChoices choices(1);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t size = 1 + choices.below(choices.one_in(4) ? 20'000 : 300);
    const ByteRange range{choices.below(10'000), size};
    const Bytes before = random_bytes(choices, size);
    const std::array<std::size_t, 5> densities = {1, 2, 5, 100, 3000};
    const Bytes after = changed(choices, before, densities[choices.below(densities.size())]);
    Bytes region;
    const bool differs = encode_patch(range, before, after, region);
    REQUIRE(differs == (before != after));
    if (!differs) continue;
    REQUIRE(region.size() <= size + size / 1024 + 16 + 16 * (size / kBlockBytes + 2));
    const auto patch = BytePatch::decode(range, region);
    REQUIRE(patch);
    Bytes mixed = before;
    for (std::size_t at = 0; at < size; ++at) {
      if (choices.one_in(2)) mixed[at] = after[at];
    }
    REQUIRE(applied(*patch, before, range.offset) == after);
    REQUIRE(applied(*patch, mixed, range.offset) == after);
    REQUIRE(applied(*patch, after, range.offset) == after);
    const std::size_t begin = choices.below(size);
    const std::size_t length = 1 + choices.below(size - begin);
    const auto part = [&](const Bytes& bytes) {
      return Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                   bytes.begin() + static_cast<std::ptrdiff_t>(begin + length));
    };
    REQUIRE(applied(*patch, part(before), range.offset + begin) == part(after));
  }
}

TEST_CASE("a patch has a hash of each block's part, old and new", "[core][journal]") {
  test::RandomChoices choices(2);
  const ByteRange range{kBlockBytes - 10, 2 * kBlockBytes};
  const Bytes before = random_bytes(choices, range.size_bytes);
  const Bytes after = changed(choices, before, 50);
  Bytes region;
  REQUIRE(encode_patch(range, before, after, region));
  const auto patch = BytePatch::decode(range, region);
  REQUIRE(patch);
  REQUIRE(patch->parts() == 3);
  std::uint64_t at = range.offset;
  for (std::size_t position = 0; position < patch->parts(); ++position) {
    const BytePatch::Part part = patch->part(position);
    CHECK(part.range.offset == at);
    at = part.range.end();
    CHECK((at % kBlockBytes == 0 || at == range.end()));
    const auto hash = [&](const Bytes& bytes) {
      return XXH3_64bits(bytes.data() + (part.range.offset - range.offset), part.range.size_bytes);
    };
    CHECK(part.new_hash == hash(after));
    CHECK(part.old_hash == hash(before));
  }
  CHECK(at == range.end());
}

TEST_CASE("only blocks with changed bytes are in the runs of a patch", "[core][journal]") {
  test::RandomChoices choices(3);
  for (int round = 0; round < 300; ++round) {
    const ByteRange range{choices.below(9000), 1 + choices.below(60'000)};
    const Bytes before = random_bytes(choices, range.size_bytes);
    const Bytes after = changed(choices, before, 1 + choices.below(20'000));
    Bytes region;
    if (!encode_patch(range, before, after, region)) continue;
    const auto patch = BytePatch::decode(range, region);
    REQUIRE(patch);
    std::vector<bool> is_listed(range.end() / kBlockBytes + 1, false);
    Bytes made = before;
    auto walked = patch->for_each_run([&](const BytePatch::Run& run) -> Result<void> {
      REQUIRE(range.contains(run.range));
      for (std::uint64_t at = run.range.offset; at < run.range.end(); ++at)
        is_listed[at / kBlockBytes] = true;
      patch->apply(run, std::span(made).subspan(run.range.offset - range.offset, run.range.size_bytes));
      return {};
    });
    REQUIRE(walked);
    REQUIRE(made == after);
    for (std::uint64_t block = range.offset / kBlockBytes; block * kBlockBytes < range.end(); ++block) {
      const ByteRange part = range.intersection({block * kBlockBytes, kBlockBytes});
      const bool differs = std::memcmp(before.data() + (part.offset - range.offset),
                                       after.data() + (part.offset - range.offset), part.size_bytes) != 0;
      REQUIRE(is_listed[block] == differs);
    }
  }
}

TEST_CASE("a damaged patch is refused", "[core][journal]") {
  const ByteRange range{0, 300};
  const Bytes hashes(16);
  const auto is_sound = [&](std::initializer_list<int> entries, ByteRange of) {
    Bytes region = hashes;
    for (const int byte : entries) region.push_back(static_cast<std::byte>(byte));
    return BytePatch::decode(of, region).has_value();
  };
  CHECK(is_sound({0, 1, 7}, range));
  CHECK(is_sound({0xff, 1, 2, 1, 2}, range));
  CHECK(is_sound({0, 1, 7, 1, 2, 8, 9}, range));
  CHECK_FALSE(is_sound({}, range));                                 // no entry
  CHECK_FALSE(is_sound({0}, range));                                // no size
  CHECK_FALSE(is_sound({0, 0}, range));                             // a size of 0
  CHECK_FALSE(is_sound({0, 2, 7}, range));                          // a byte is missing
  CHECK_FALSE(is_sound({0, 1, 7, 0, 1, 8}, range));                 // no gap
  CHECK_FALSE(is_sound({0xac, 2, 1, 7}, range));                    // begins at the end
  CHECK_FALSE(is_sound({0xab, 2, 2, 7, 8}, range));                 // ends behind the end
  CHECK_FALSE(is_sound({0x80, 0x80, 0x80, 0x80, 1, 1, 7}, range));  // a number of five bytes
  CHECK_FALSE(is_sound({0x80}, range));                             // half a number
  CHECK_FALSE(is_sound({0, 1, 7}, ByteRange{0, 0}));
  CHECK_FALSE(is_sound({0, 1, 7}, ByteRange{0, kMostPatchedBytes + 1}));
  CHECK_FALSE(is_sound({0, 1, 7}, ByteRange{4000, 300}));  // two parts, and hashes of one
}

TEST_CASE("a patch of bytes that all change is hardly longer than they are", "[core][journal]") {
  const std::size_t size = std::size_t{1} << 20U;
  const Bytes before(size);
  const Bytes after(size, std::byte{1});
  Bytes region;
  REQUIRE(encode_patch({0, size}, before, after, region));
  CHECK(region.size() < size + size / 128);
}

}  // namespace
}  // namespace stfs
