// The hashes that a stage knows of its blocks are right after any writes, cuts and growths.
#include "core/commit/staged_hashes.h"

#include <algorithm>
#include <random>
#include <string>

#include "core/commit/staging.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/gone_archive.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kTensorBytes = 3 << 20;

class StagedBlocks {
 public:
  explicit StagedBlocks(std::uint64_t offset, Storage& storage = system_storage())
      : journal_(Journal::create(storage, directory_ / "model.safetensors", gone_archive()).value()),
        staging_(*journal_, {offset, kTensorBytes}) {}

  Staging* operator->() { return &staging_; }

  void write(std::uint64_t offset, std::uint64_t size_bytes, std::minstd_rand& random) {
    std::vector<std::byte> bytes(size_bytes);
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
    REQUIRE(staging_.write(bytes, offset));
  }

  /// Returns the number of bytes in blocks with a known hash. Each known hash must be right.
  std::uint64_t known_bytes() {
    std::uint64_t known = 0;
    const ByteRange target = staging_.target();
    std::uint64_t at = round_down_to_block(target.offset);
    while (const auto run = staging_.hashes().first_run({at, round_up_to_block(target.end()) - at})) {
      std::vector<std::uint64_t> hashes(run->size_bytes / kBlockBytes);
      REQUIRE(staging_.hashes().read(*run, hashes));
      std::vector<std::byte> bytes(run->size_bytes);
      REQUIRE(journal_->file().read(bytes, staging_.journal_offset(run->offset)));
      std::vector<std::uint64_t> expected;
      append_block_hashes(bytes, expected);
      REQUIRE(hashes == expected);
      // The bytes of other tensors in a block are not staged yet, so no such block has a hash.
      REQUIRE(target.contains(*run));
      known += run->size_bytes;
      at = run->end();
    }
    return known;
  }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Journal> journal_;
  Staging staging_;
};

}  // namespace

TEST_CASE("large writes in a row leave no block unknown but the tensor's first and last",
          "[core][staged_hashes]") {
  const std::uint64_t offset = GENERATE(0, 4096, 8192 + 13, 4095);
  const std::uint64_t piece = GENERATE(1 << 20, 128 << 10, (128 << 10) + 1, 777'777);
  CAPTURE(offset, piece);
  StagedBlocks staged(offset);
  std::minstd_rand random(1);
  for (std::uint64_t at = 0; at < kTensorBytes; at += piece) {
    staged.write(at, std::min(piece, kTensorBytes - at), random);
  }
  const std::uint64_t last = kTensorBytes % piece;
  const std::uint64_t whole = round_down_to_block(offset + kTensorBytes) - round_up_to_block(offset);
  CHECK(staged.known_bytes() + (last > 0 && last < (128 << 10) ? last + kBlockBytes : 0) >= whole);
}

TEST_CASE("small writes are left to the commit", "[core][staged_hashes]") {
  StagedBlocks staged(0);
  std::minstd_rand random(1);
  for (std::uint64_t at = 0; at < kTensorBytes; at += 64 << 10) staged.write(at, 64 << 10, random);
  CHECK(staged.known_bytes() == 0);
}

TEST_CASE("what is known stays true under random writes, cuts and lengthenings", "[core][staged_hashes]") {
  const unsigned seed = GENERATE(range(0U, 40U));
  CAPTURE(seed);
  std::minstd_rand random(seed + 1);
  StagedBlocks staged(random() % 10'000);
  std::uint64_t most = 0;
  for (int step = 0; step < 30; ++step) {
    const std::uint64_t at = random() % kTensorBytes;
    const std::uint64_t longest = random() % 3 == 0 ? 9'000 : 700'000;
    if (random() % 6 == 0) {
      REQUIRE(staged->resize(at));
    } else {
      staged.write(at, std::min(1 + random() % longest, kTensorBytes - at), random);
    }
    if (random() % 5 == 0) REQUIRE(staged->pieces());
    most = std::max(most, staged.known_bytes());
  }
  CHECK(most > 0);
}

TEST_CASE("hashes that can't be kept are forgotten: the write itself has not failed",
          "[core][staged_hashes]") {
  FaultyStorage storage;
  StagedBlocks staged(0, storage);
  std::minstd_rand random(1);
  storage.plan().fail_call(FileCall::Write, 2, ENOSPC);
  staged.write(0, 1 << 20, random);
  CHECK(staged.known_bytes() == 0);
  storage.plan().fail_call(0, 0);
  staged.write(1 << 20, 1 << 20, random);
  CHECK(staged.known_bytes() == 1 << 20);
}
