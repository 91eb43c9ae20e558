// The encoder writes exactly the format's bytes, in one frame that stores its size, and is the inverse of the
// decoder.
#include "tools/sync/diff_encoder.h"

#include <zstd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/plain.h"
#include "tests/support/published_diff.h"
#include "tools/sync/diff_decoder.h"

namespace stfs::test {
namespace {

using sync::ChecksumFormat;
using sync::DiffEncoder;
using sync::DiffEncoding;

constexpr DiffEncoding kBoth[] = {DiffEncoding::Xor, DiffEncoding::Overwrite};

sync::ReadPiece reader_of(const std::string& bytes) {
  return [&bytes](std::uint64_t offset, std::span<std::byte> to) -> Result<void> {
    std::memcpy(to.data(), bytes.data() + offset, to.size());
    return {};
  };
}

struct Encoded {
  sync::EncodedDiff diff;
  std::string frame;
};

Encoded encode(DiffEncoder& encoder, const std::string& before, const std::string& after) {
  Encoded encoded;
  Work work;
  work.begin(after.size());
  const auto diff = encoder.encode(
      {before.size(), reader_of(before), reader_of(after)},
      [&](std::span<const std::byte> bytes) -> Result<void> {
        encoded.frame += text_of(bytes);
        return {};
      },
      work);
  REQUIRE(diff);
  CHECK(work.done_bytes() == after.size());
  encoded.diff = *diff;
  return encoded;
}

/// Decompresses as Python's zstandard.decompress does: the frame must store its size.
std::string expanded(const std::string& frame) {
  const auto size_bytes = ZSTD_getFrameContentSize(frame.data(), frame.size());
  REQUIRE(size_bytes < ZSTD_CONTENTSIZE_ERROR);
  REQUIRE(ZSTD_findFrameCompressedSize(frame.data(), frame.size()) == frame.size());
  std::string content(size_bytes, '\0');
  REQUIRE(ZSTD_decompress(content.data(), content.size(), frame.data(), frame.size()) == size_bytes);
  return content;
}

std::string random_bytes(std::size_t size) {
  RandomChoices choices(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(choices.below(256));
  return bytes;
}

/// Changes one byte in `one_in`, from `first` on.
std::string with_changes(std::string bytes, std::size_t one_in, std::size_t first = 0) {
  RandomChoices choices(one_in);
  for (std::size_t at = first; at < bytes.size(); ++at) {
    if (choices.one_in(one_in))
      bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1 + choices.below(255)));
  }
  return bytes;
}

}  // namespace

TEST_CASE("encoder writes exactly the diff of the format, as one frame with its size", "[tools][sync]") {
  for (const DiffEncoding encoding : kBoth) {
    DiffEncoder encoder(encoding, ChecksumFormat::Xxh3_128);
    for (const std::size_t size : {1U, 2U, 7U, 8U, 9U, 131071U, 131072U, 131073U, 700001U}) {
      for (const std::size_t one_in : {1U, 3U, 60U, 100000U}) {
        const std::string before = random_bytes(size);
        const std::string after = with_changes(before, one_in);
        const Encoded encoded = encode(encoder, before, after);
        INFO(name_of(encoding) << " " << size << " " << one_in);
        REQUIRE(encoded.diff.is_changed == (before != after));
        REQUIRE(encoded.diff.size_bytes == encoded.frame.size());
        if (!encoded.diff.is_changed) {
          REQUIRE(encoded.frame.empty());
          continue;
        }
        REQUIRE(expanded(encoded.frame) == diff_of(encoding, before, after));
        sync::ChecksumStream checksum(ChecksumFormat::Xxh3_128);
        checksum.update(bytes_of(after));
        REQUIRE(encoded.diff.checksum == checksum.hex());
      }
    }
  }
}

TEST_CASE("encoder begins a late first change with the equal bytes before it", "[tools][sync]") {
  DiffEncoder encoder(DiffEncoding::Xor, ChecksumFormat::Adler32);
  const std::string before = random_bytes(600000);
  for (const std::size_t first : {131071U, 131072U, 400000U, 599999U}) {
    const std::string after = with_changes(before, 1, first);
    CHECK(expanded(encode(encoder, before, after).frame) == xor_diff(before, after));
  }
}

TEST_CASE("encoder writes many changes in passes, and any number around the limit", "[tools][sync]") {
  DiffEncoder encoder(DiffEncoding::Overwrite, ChecksumFormat::Adler32);
  constexpr std::size_t kLimit = 131072;
  const std::string before = random_bytes(5 * kLimit);
  for (const std::size_t changes : {kLimit - 1, kLimit, kLimit + 1, 2 * kLimit + 1, 5 * kLimit}) {
    const std::string after = with_changes(before, 1, before.size() - changes);
    CHECK(expanded(encode(encoder, before, after).frame) == overwrite_diff_of(before, after));
  }
}

TEST_CASE("encoder writes nothing for equal, empty and scalar tensors that stay", "[tools][sync]") {
  for (const DiffEncoding encoding : kBoth) {
    DiffEncoder encoder(encoding, ChecksumFormat::Adler32);
    for (const std::size_t size : {0U, 1U, 8U, 300000U}) {
      const std::string bytes = random_bytes(size);
      const Encoded encoded = encode(encoder, bytes, bytes);
      CHECK_FALSE(encoded.diff.is_changed);
      CHECK(encoded.frame.empty());
    }
  }
}

TEST_CASE("encoder stops when it is told to, and passes failures on", "[tools][sync]") {
  const std::string before = random_bytes(400000);
  const std::string after = with_changes(before, 2);
  const auto drop = [](std::span<const std::byte>) { return Result<void>(); };
  Work work;
  Work stopped;
  stopped.stop();
  for (const DiffEncoding encoding : kBoth) {
    DiffEncoder encoder(encoding, ChecksumFormat::Adler32);
    const sync::TensorChange change{before.size(), reader_of(before), reader_of(after)};
    CHECK(errno_of(encoder.encode(change, drop, stopped)) == EINTR);
    const auto full = [](std::span<const std::byte>) -> Result<void> {
      return fail(ErrorCode::System, ENOSPC, "full");
    };
    CHECK(errno_of(encoder.encode(change, full, work)) == ENOSPC);
    const sync::TensorChange broken{before.size(), reader_of(before),
                                    [](std::uint64_t, std::span<std::byte>) {
                                      return Result<void>(fail(ErrorCode::System, EIO, "broken"));
                                    }};
    CHECK(errno_of(encoder.encode(broken, drop, work)) == EIO);
    CHECK(expanded(encode(encoder, before, after).frame) == diff_of(encoding, before, after));
  }
}

TEST_CASE("encoder tells how many bytes of a tensor it has counted", "[tools][sync]") {
  const std::string before = random_bytes(400000);
  const std::string after = with_changes(before, 2);
  const auto drop = [](std::span<const std::byte>) { return Result<void>(); };
  // The tensor gets shorter while it is read.
  const auto read_shorter = [&](std::uint64_t offset, std::span<std::byte> to) -> Result<void> {
    if (offset + to.size() > 300000) return fail(ErrorCode::ArchiveChanged, ESTALE, "shorter");
    return reader_of(after)(offset, to);
  };
  for (const DiffEncoding encoding : kBoth) {
    DiffEncoder encoder(encoding, ChecksumFormat::Adler32);
    Work work;
    work.begin(after.size());
    CHECK(errno_of(encoder.encode({before.size(), reader_of(before), read_shorter}, drop, work)) == ESTALE);
    CHECK(encoder.counted_bytes() > 0);
    CHECK(encoder.counted_bytes() < after.size());
    CHECK(encoder.counted_bytes() == work.done_bytes());
    work.take_back(encoder.counted_bytes());
    CHECK(work.done_bytes() == 0);
    REQUIRE(encoder.encode({before.size(), reader_of(before), reader_of(after)}, drop, work));
    CHECK(encoder.counted_bytes() == after.size());
    CHECK(work.done_bytes() == after.size());
  }
}

TEST_CASE("encoder refuses overwrite of more than 4 GiB and names xor", "[tools][sync]") {
  DiffEncoder encoder(DiffEncoding::Overwrite, ChecksumFormat::Adler32);
  Work work;
  const auto refused = encoder.encode({.size_bytes = (std::uint64_t{1} << 32U) + 1}, {}, work);
  CHECK(errno_of(refused) == EFBIG);
  CHECK(contains(refused.error().message, "use xor"));
}

TEST_CASE("encoder notices a tensor that changes between its passes", "[tools][sync]") {
  DiffEncoder encoder(DiffEncoding::Overwrite, ChecksumFormat::Adler32);
  const std::string before(600000, 'a');
  for (const bool grows : {true, false}) {
    std::string after(600000, 'b');
    if (grows) after[599999] = 'a';
    int passes = 0;
    const auto read_before = [&](std::uint64_t offset, std::span<std::byte> to) {
      if (offset == 0 && ++passes == 2) after[599999] = grows ? 'b' : 'a';
      return reader_of(before)(offset, to);
    };
    Work work;
    const auto refused = encoder.encode(
        {before.size(), read_before, reader_of(after)},
        [](std::span<const std::byte>) { return Result<void>(); }, work);
    CHECK(errno_of(refused) == ESTALE);
  }
}

}  // namespace stfs::test
