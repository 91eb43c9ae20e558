// core/remote/fetched_blocks.h, opened_file.h: reads of remote files whose blocks are here, without a server.
#include "core/remote/fetched_blocks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/remote/opened_file.h"
#include "core/remote/remote_notes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kRemoteBlock = FetchedBlocks::kBlockBytes;
constexpr std::uint64_t kRemoteSize = 40 * kRemoteBlock + 9;
const std::string kListedDigest(64, 'd');

class CacheOfTest {
 public:
  CacheOfTest() : before_(std::getenv("XDG_CACHE_HOME") == nullptr ? "" : std::getenv("XDG_CACHE_HOME")) {
    ::setenv("XDG_CACHE_HOME", directory_.path().c_str(), 1);
  }
  ~CacheOfTest() {
    before_.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", before_.c_str(), 1);
  }

 private:
  const std::string before_;
  TemporaryDirectory directory_;
};

std::vector<std::byte> remote_content(std::uint64_t offset, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t at = 0; at < size; ++at) bytes[at] = static_cast<std::byte>((offset + at) * 7 % 253);
  return bytes;
}

/// A file that no request can bring: each fails at once.
RemoteAddress offline_address(std::uint64_t size_bytes = kRemoteSize) {
  return {.url = "https://host/x",
          .listed = RemoteAddress::Listed{"https://hub", kListedDigest, size_bytes},
          .is_kept = true,
          .is_offline = true};
}

BlockFile::Identity identity_of_test() {
  return {.address = "https://hub sha256:" + kListedDigest,
          .version = "sha256:" + kListedDigest,
          .size_bytes = kRemoteSize,
          .shown = "x"};
}

void put(const BlockFile& file, std::uint64_t first, std::uint64_t end) {
  const std::uint64_t last = std::min(end * kRemoteBlock, kRemoteSize);
  REQUIRE(file.write(first, remote_content(first * kRemoteBlock, last - first * kRemoteBlock)));
}

std::shared_ptr<FetchedBlocks> blocks_over(std::unique_ptr<BlockFile> file,
                                           std::span<const std::byte> first = {}) {
  return FetchedBlocks::make(RemoteObject::known(offline_address(), {kListedDigest, {}, kRemoteSize}),
                             std::move(file), first);
}

/// Whether a read shows the right bytes, or its errno.
std::string shown(FetchedBlocks& blocks, std::uint64_t offset, std::size_t size) {
  std::vector<std::byte> bytes(size);
  const auto done = blocks.read(bytes, offset, {offset, size});
  if (!done) return std::to_string(done.error().errno_value);
  return bytes == remote_content(offset, size) ? "right" : "wrong";
}

}  // namespace

TEST_CASE("blocks that are here are read, and missing ones are asked for", "[core][remote]") {
  const CacheOfTest cache;
  auto file = BlockFile::share(identity_of_test());
  REQUIRE(file);
  put(*file, 1, 3);
  put(*file, 40, 41);
  const auto blocks = blocks_over(std::move(file));
  CHECK(blocks->is_shared());
  CHECK(shown(*blocks, kRemoteBlock, 2 * kRemoteBlock) == "right");
  CHECK(shown(*blocks, kRemoteBlock + 5, 10) == "right");
  CHECK(shown(*blocks, 40 * kRemoteBlock, 9) == "right");
  const std::string refused = std::to_string(ENETUNREACH);
  CHECK(shown(*blocks, kRemoteBlock - 1, 2) == refused);
  CHECK(shown(*blocks, 3 * kRemoteBlock - 1, 2) == refused);
  CHECK(shown(*blocks, 0, 1) == refused);
  CHECK(blocks->fetch({kRemoteBlock, 2 * kRemoteBlock}));
  CHECK(blocks->fetch({0, 1}).error().errno_value == ENETUNREACH);
}

TEST_CASE("what is missing is counted in bytes and in requests", "[core][remote]") {
  const CacheOfTest cache;
  auto file = BlockFile::share(identity_of_test());
  REQUIRE(file);
  put(*file, 34, 35);
  const auto blocks = blocks_over(std::move(file));
  const auto missing = [&](std::uint64_t first, std::uint64_t end) {
    const auto found = blocks->missing({first * kRemoteBlock, end * kRemoteBlock - first * kRemoteBlock});
    return std::to_string(found.size_bytes) + " " + std::to_string(found.requests);
  };
  CHECK(missing(0, 1) == std::to_string(kRemoteBlock) + " 1");
  CHECK(missing(0, 32) == std::to_string(32 * kRemoteBlock) + " 1");
  CHECK(missing(0, 33) == std::to_string(33 * kRemoteBlock) + " 2");
  CHECK(missing(33, 36) == std::to_string(2 * kRemoteBlock) + " 2");
  CHECK(missing(34, 35) == "0 0");
  CHECK(missing(40, 41) == "9 1");
  CHECK_FALSE(blocks->pin({33 * kRemoteBlock, 2 * kRemoteBlock}));
  CHECK(blocks->pin({34 * kRemoteBlock, 5}));
}

TEST_CASE("a block that another program drops or damages is never shown", "[core][remote]") {
  const CacheOfTest cache;
  auto file = BlockFile::share(identity_of_test());
  const auto other = BlockFile::share(identity_of_test());
  REQUIRE(file);
  REQUIRE(other);
  put(*file, 0, 4);
  const auto blocks = blocks_over(std::move(file));
  CHECK(shown(*blocks, 0, 4 * kRemoteBlock) == "right");
  const Blocks gone{1, 2};
  REQUIRE(other->drop(std::span(&gone, 1)));
  CHECK(shown(*blocks, kRemoteBlock, 10) == std::to_string(ENETUNREACH));
  CHECK(shown(*blocks, 2 * kRemoteBlock, 2 * kRemoteBlock) == "right");
  put(*other, 1, 2);
  CHECK(shown(*blocks, 0, 4 * kRemoteBlock) == "right");
}

TEST_CASE("the first bytes of a file that have come are kept in whole blocks", "[core][remote]") {
  const CacheOfTest cache;
  auto file = BlockFile::share(identity_of_test());
  REQUIRE(file);
  const auto first = remote_content(0, 2 * kRemoteBlock + 5);
  const auto blocks = blocks_over(std::move(file), first);
  CHECK(shown(*blocks, 0, 2 * kRemoteBlock) == "right");
  CHECK(shown(*blocks, 2 * kRemoteBlock, 1) == std::to_string(ENETUNREACH));
}

TEST_CASE("a listed file that is here is opened without a request", "[core][remote]") {
  const CacheOfTest cache;
  {
    const auto file = BlockFile::share(identity_of_test());
    REQUIRE(file);
    put(*file, 0, 2);
  }
  OpenedFile::Source source{
      .path = "https://host/x", .shown = "x", .address = offline_address(), .query = ""};
  const auto opened = OpenedFile::open(source);
  REQUIRE(opened);
  CHECK((*opened)->version() == "sha256:" + kListedDigest);
  CHECK((*opened)->size_bytes() == kRemoteSize);
  CHECK((*opened)->local() == nullptr);
  CHECK((*opened)->path() == source.path);
  CHECK((*opened)->status().mode == (S_IFREG | 0444));
  std::vector<std::byte> bytes(10);
  REQUIRE((*opened)->read(bytes, 100));
  CHECK(bytes == remote_content(100, 10));
  CHECK((*opened)->read(bytes, kRemoteSize - 9).error().errno_value == EIO);
  CHECK((*opened)->read(bytes, kRemoteSize + 1).error().errno_value == EIO);
  source.query = "?sig=x";
  const auto behind_signature = OpenedFile::open(source);
  REQUIRE(behind_signature);
  CHECK((*behind_signature)->status().mode == (S_IFREG | 0400));
  source.query = "";
  CHECK((*OpenedFile::open(source))->status().mode == (S_IFREG | 0400));
  source.address.is_kept = source.address.is_offline = false;
  CHECK((*OpenedFile::open(source))->status().mode == (S_IFREG | 0444));
  source.address.listed->size_bytes = BlockFile::kMostBytes + 1;
  CHECK(errno_of(OpenedFile::open(source)) == EFBIG);
  source.address = offline_address();
  source.address.listed->hub = "https://other";
  CHECK(errno_of(OpenedFile::open(source)) == ENETUNREACH);
}

TEST_CASE("each note about a remote file is told once", "[core][remote]") {
  take_remote_notes();
  add_remote_note("a");
  add_remote_note("b");
  add_remote_note("a");
  CHECK(take_remote_notes() == std::vector<std::string>{"a", "b"});
  CHECK(take_remote_notes().empty());
}
