// core/remote/block_file.h, block_set.h, block_cache.h: blocks of remote files on the local disk.
#include "core/remote/block_file.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/remote/block_cache.h"
#include "core/remote/block_set.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kBlock = BlockFile::kBlockBytes;

/// The cache of this test alone.
class OwnCache {
 public:
  OwnCache() : before_(std::getenv("XDG_CACHE_HOME") == nullptr ? "" : std::getenv("XDG_CACHE_HOME")) {
    ::setenv("XDG_CACHE_HOME", directory_.path().c_str(), 1);
  }
  ~OwnCache() {
    before_.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", before_.c_str(), 1);
  }
  [[nodiscard]] std::filesystem::path blocks() const {
    return directory_.path() / "safetensorsfs" / "blocks";
  }

 private:
  const std::string before_;
  TemporaryDirectory directory_;
};

std::vector<std::byte> bytes_of(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t at = 0; at < size; ++at) bytes[at] = static_cast<std::byte>(seed + at % 251);
  return bytes;
}

BlockFile::Identity identity_of(std::uint64_t size_bytes, const std::string& version = "v1") {
  return {.address = "https://host/x", .version = version, .size_bytes = size_bytes, .shown = "x"};
}

std::string found(const BlockFile& file, std::uint64_t block) {
  switch (file.prove(block)) {
    case BlockFile::Found::Right: return "right";
    case BlockFile::Found::Missing: return "missing";
    case BlockFile::Found::Wrong: return "wrong";
  }
  return "";
}

std::vector<std::uint64_t> listed(const BlockFile& file) {
  std::vector<std::uint64_t> blocks;
  file.each_entry([&](std::uint64_t block, const BlockFile::Entry&) { blocks.push_back(block); });
  return blocks;
}

void flip(const BlockFile& file, std::uint64_t offset_from_end) {
  const auto at =
      static_cast<off_t>(std::filesystem::file_size("/proc/self/fd/" + std::to_string(file.descriptor()))) -
      static_cast<off_t>(offset_from_end);
  char byte = 0;
  REQUIRE(::pread(file.descriptor(), &byte, 1, at) == 1);
  byte = static_cast<char>(byte ^ 1);
  REQUIRE(::pwrite(file.descriptor(), &byte, 1, at) == 1);
}

CachedFile only_file() {
  const auto files = list_block_cache().value();
  REQUIRE(files.size() == 1);
  return files.front();
}

}  // namespace

TEST_CASE("a set of blocks has the blocks that were added, wherever they are", "[core][remote]") {
  BlockSet set(std::uint64_t{1} << 27U);
  for (const std::uint64_t block : {0UL, 1UL, 63UL, 64UL, 65'535UL, 65'536UL, (1UL << 27U) - 1}) {
    CHECK_FALSE(set.has(block));
    set.set(block, true);
    CHECK(set.has(block));
    CHECK_FALSE(set.has(block + 2));
  }
  set.set(64, false);
  CHECK_FALSE(set.has(64));
  CHECK(set.has(63));
  set.clear();
  CHECK_FALSE(set.has(63));
}

TEST_CASE("a block is right with its own bytes at its own place alone", "[core][remote]") {
  const OwnCache cache;
  const std::uint64_t size = 2 * kBlock + 100;
  const auto file = BlockFile::share(identity_of(size));
  REQUIRE(file);
  CHECK(file->count() == 3);
  CHECK(found(*file, 0) == "missing");
  CHECK_FALSE(file->has_first());
  REQUIRE(file->write(0, bytes_of(kBlock, 1)));
  REQUIRE(file->write(2, bytes_of(100, 2)));
  CHECK(found(*file, 0) == "right");
  CHECK(found(*file, 1) == "missing");
  CHECK(found(*file, 2) == "right");
  CHECK(listed(*file) == std::vector<std::uint64_t>{0, 2});
  CHECK(file->has_first());
  CHECK_FALSE(file->has_all());
  std::vector<std::byte> shown(100);
  REQUIRE(file->read(shown, 2 * kBlock));
  CHECK(shown == bytes_of(100, 2));
  CHECK(file->read(shown, 2 * kBlock + 1).error().errno_value == EIO);
  flip(*file, 1);
  CHECK(found(*file, 2) == "wrong");
  REQUIRE(file->write(1, bytes_of(kBlock + 100, 3)));
  CHECK(file->has_all());
  CHECK(found(*file, 2) == "right");
}

TEST_CASE("programs share the file of one version, and a new version takes its place", "[core][remote]") {
  const OwnCache cache;
  const auto one = BlockFile::share(identity_of(kBlock));
  REQUIRE(one);
  REQUIRE(one->write(0, bytes_of(kBlock, 1)));
  const auto two = BlockFile::share(identity_of(kBlock));
  REQUIRE(two);
  CHECK(found(*two, 0) == "right");
  const bool is_other_size = GENERATE(true, false);
  const auto next = BlockFile::share(is_other_size ? identity_of(kBlock - 1) : identity_of(kBlock, "v2"));
  REQUIRE(next);
  CHECK(found(*next, 0) == "missing");
  CHECK(found(*one, 0) == "right");
  const auto there = BlockFile::find("https://host/x");
  REQUIRE(there);
  CHECK(there->identity().is_same(next->identity()));
  CHECK(there->identity().shown == "x");
  CHECK_FALSE(BlockFile::find("https://host/y"));
}

TEST_CASE("a size that no file has is refused", "[core][remote]") {
  const OwnCache cache;
  CHECK_FALSE(BlockFile::share(identity_of(BlockFile::kMostBytes + 1)));
  CHECK(BlockFile::make_unnamed(BlockFile::kMostBytes + 1).error().errno_value == EFBIG);
  CHECK_FALSE(BlockFile::share({.address = std::string(5000, 'x'), .version = "v", .size_bytes = 1}));
}

TEST_CASE("a drop changes the generation, and no bytes of it are left", "[core][remote]") {
  const OwnCache cache;
  const auto file = BlockFile::share(identity_of(3 * kBlock));
  const auto other = BlockFile::share(identity_of(3 * kBlock));
  REQUIRE(file);
  REQUIRE(other);
  REQUIRE(file->write(0, bytes_of(3 * kBlock, 1)));
  const std::uint64_t before = file->generation();
  CHECK(before % 2 == 0);
  CHECK(before != BlockFile::kDropping);
  const bool stays = GENERATE(true, false);
  REQUIRE(file->set_pinned({1, 2}, true));
  const Blocks run{1, 3};
  REQUIRE(other->drop(std::span(&run, 1), stays ? BlockFile::Pins::Stay : BlockFile::Pins::Go));
  CHECK(file->generation() == before + 2);
  CHECK(listed(*file) == std::vector<std::uint64_t>{0});
  CHECK(found(*file, 0) == "right");
  std::vector<std::byte> shown(2 * kBlock);
  REQUIRE(file->read(shown, kBlock));
  CHECK(shown == std::vector<std::byte>(2 * kBlock));
  CHECK((file->entries({1, 2}).front().is_pinned != 0) == stays);
  CHECK_FALSE(file->set_pinned({0, 2}, true));
  REQUIRE(other->drop({}));
  CHECK(file->generation() == before + 2);
}

TEST_CASE("a program that was killed while it dropped blocks stops nobody", "[core][remote]") {
  const OwnCache cache;
  const auto file = BlockFile::share(identity_of(kBlock));
  REQUIRE(file);
  const std::uint64_t odd = file->generation() + 1;
  REQUIRE(::pwrite(file->descriptor(), &odd, sizeof odd, 16) == sizeof odd);
  const auto other = BlockFile::share(identity_of(kBlock));
  REQUIRE(other);
  CHECK(other->generation() == odd + 1);
  CHECK(file->generation() == odd + 1);
}

TEST_CASE("a use of a block is noted with its time", "[core][remote]") {
  const OwnCache cache;
  const auto file = BlockFile::share(identity_of(kBlock));
  REQUIRE(file);
  REQUIRE(file->write(0, bytes_of(kBlock, 1)));
  const std::uint32_t old = 7;
  REQUIRE(::pwrite(file->descriptor(), &old, 4, 4096 + 8) == 4);
  CHECK(file->entries({0, 1}).front().used_at == 7);
  CHECK(found(*file, 0) == "right");
  CHECK(file->entries({0, 1}).front().used_at + 1 >= minutes_now());
}

TEST_CASE("a proof of the whole file lasts until a block is dropped", "[core][remote]") {
  const OwnCache cache;
  const auto file = BlockFile::share(identity_of(kBlock));
  REQUIRE(file);
  CHECK_FALSE(file->is_whole_proven());
  file->note_whole_proven(file->generation());
  CHECK(file->is_whole_proven());
  const Blocks run{0, 1};
  REQUIRE(file->drop(std::span(&run, 1)));
  CHECK_FALSE(file->is_whole_proven());
}

TEST_CASE("one program at a time fetches a block", "[core][remote]") {
  const OwnCache cache;
  const auto one = BlockFile::share(identity_of(3 * kBlock));
  const auto two = BlockFile::share(identity_of(3 * kBlock));
  REQUIRE(one);
  REQUIRE(two);
  REQUIRE(one->try_lock({0, 2}));
  CHECK_FALSE(two->try_lock({1, 2}));
  CHECK(two->try_lock({2, 3}));
  one->unlock({0, 2});
  CHECK(two->try_lock({1, 2}));
}

TEST_CASE("a file is private for all programs of its user", "[core][remote]") {
  const OwnCache cache;
  const auto file = BlockFile::share(identity_of(kBlock));
  REQUIRE(file);
  CHECK_FALSE(file->is_private());
  file->set_private(true);
  CHECK(BlockFile::share(identity_of(kBlock))->is_private());
  file->set_private(false);
  CHECK_FALSE(BlockFile::share(identity_of(kBlock))->is_private());
}

TEST_CASE("the list of the cache says what is kept and how it is known", "[core][remote]") {
  const OwnCache cache;
  {
    const auto file = BlockFile::share(identity_of(2 * kBlock + 7, "sha256:" + std::string(64, '0')));
    REQUIRE(file);
    REQUIRE(file->write(1, bytes_of(kBlock + 7, 1)));
    REQUIRE(file->set_pinned({2, 3}, true));
    CHECK(only_file().is_in_use);
  }
  CachedFile shown = only_file();
  CHECK_FALSE(shown.is_in_use);
  CHECK(shown.kept_bytes == kBlock + 7);
  CHECK(shown.pinned_bytes == 7);
  CHECK(shown.used_at + 1 >= minutes_now());
  CHECK(name_of(shown.proof) == "partly");
  REQUIRE(unpin_cached_file(shown.name));
  CHECK(only_file().pinned_bytes == 0);
  CHECK(prove_cached_file(shown.name).error().errno_value == ENODATA);
  CHECK(drop_cached_file(shown.name).value() == kBlock + 7);
  CHECK(list_block_cache().value().empty());
  CHECK(drop_cached_file(shown.name).error().errno_value == ENOENT);
}

TEST_CASE("the blocks that were used least recently go first, and no pinned ones", "[core][remote]") {
  const OwnCache cache;
  const auto file = BlockFile::share(identity_of(6 * kBlock));
  REQUIRE(file);
  REQUIRE(file->write(0, bytes_of(6 * kBlock, 1)));
  const std::uint32_t now = minutes_now();
  const std::vector<std::uint32_t> used = {now - 50, now - 10, now - 40, now - 30, now, now - 90};
  for (std::size_t at = 0; at < used.size(); ++at)
    REQUIRE(::pwrite(file->descriptor(), &used[at], 4, static_cast<off_t>(4096 + 16 * at + 8)) == 4);
  REQUIRE(file->set_pinned({5, 6}, true));
  CHECK(drop_least_recent(0) == 0);
  CHECK(drop_least_recent(kBlock + 1) == 2 * kBlock);
  CHECK(listed(*file) == std::vector<std::uint64_t>{1, 3, 4, 5});
  CHECK(drop_least_recent(100 * kBlock) == 2 * kBlock);
  CHECK(listed(*file) == std::vector<std::uint64_t>{4, 5});
}

TEST_CASE("the limit of the cache is kept in its directory", "[core][remote]") {
  const OwnCache cache;
  CHECK_FALSE(block_cache_limit().value());
  CHECK(drop_over_limit() == 0);
  REQUIRE(set_block_cache_limit(2 * kBlock));
  CHECK(block_cache_limit().value() == 2 * kBlock);
  const auto file = BlockFile::share(identity_of(4 * kBlock));
  REQUIRE(file);
  REQUIRE(file->write(0, bytes_of(2 * kBlock, 1)));
  const std::uint32_t old = 7;
  for (const off_t at : {0, 1, 2, 3}) REQUIRE(::pwrite(file->descriptor(), &old, 4, 4096 + 16 * at + 8) == 4);
  CHECK(drop_over_limit() == 0);
  REQUIRE(file->write(2, bytes_of(2 * kBlock, 1)));
  for (const off_t at : {2, 3}) REQUIRE(::pwrite(file->descriptor(), &old, 4, 4096 + 16 * at + 8) == 4);
  CHECK(drop_over_limit() == 3 * kBlock);
  for (const char* text : {"", "none\n", "-1\n"}) {
    std::ofstream(cache.blocks() / "limit") << text;
    CHECK_FALSE(block_cache_limit().value());
  }
  std::ofstream(cache.blocks() / "limit") << "17\n";
  CHECK(block_cache_limit().value() == 17);
  REQUIRE(set_block_cache_limit(std::nullopt));
  CHECK_FALSE(block_cache_limit().value());
  REQUIRE(set_block_cache_limit(std::nullopt));
}
