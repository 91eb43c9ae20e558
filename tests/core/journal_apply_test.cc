// Tests the loop that writes a journal's blocks to the archive.
#include "core/journal/journal_apply.h"

#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct JournalAndArchive {
  explicit JournalAndArchive(std::uint64_t blocks, Storage& storage = system_storage()) {
    const std::string old(blocks * kBlockBytes + 5, 'o');
    std::string fresh;
    for (std::uint64_t block = 0; block <= blocks; ++block)
      fresh += std::string(kBlockBytes, static_cast<char>('A' + block % 26));
    archive_path = directory.write("archive", old);
    archive = storage.open(archive_path, Access::ReadWrite).value();
    journal = storage.open(directory.write("journal", fresh), Access::ReadWrite).value();
  }
  TemporaryDirectory directory;
  std::string archive_path;
  std::unique_ptr<File> archive;
  std::unique_ptr<File> journal;
};

JournalRange range_of(ByteRange archive, std::uint64_t journal_offset) {
  return {.archive = archive, .journal_offset = journal_offset, .new_hashes = {}, .old_hashes = {}};
}

}  // namespace

TEST_CASE("exactly the named blocks change, as often as they are applied", "[core][journal_apply]") {
  const JournalAndArchive pair(4);
  const std::vector<JournalRange> ranges = {
      range_of({0, kBlockBytes}, 2 * kBlockBytes),
      range_of({2 * kBlockBytes, kBlockBytes}, 0),
      range_of({4 * kBlockBytes, 5}, kBlockBytes),
  };
  std::vector<std::uint64_t> seen;
  REQUIRE(apply_ranges(*pair.archive, *pair.journal, ranges, [&](ByteRange piece) -> Result<void> {
    seen.push_back(piece.size_bytes);
    return {};
  }));
  const std::string expected = std::string(kBlockBytes, 'C') + std::string(kBlockBytes, 'o') +
                               std::string(kBlockBytes, 'A') + std::string(kBlockBytes, 'o') + "BBBBB";
  CHECK(content_of(pair.archive_path) == expected);
  CHECK(seen == std::vector<std::uint64_t>{kBlockBytes, kBlockBytes, 5});
  REQUIRE(apply_ranges(*pair.archive, *pair.journal, ranges));
  CHECK(content_of(pair.archive_path) == expected);
}

TEST_CASE("a long range is copied whole where blocks can't be shared", "[core][journal_apply]") {
  FaultyStorage storage;
  const JournalAndArchive pair(700, storage);
  storage.plan().fail_call(FileCall::Clone, 1, EOPNOTSUPP);
  REQUIRE(apply_ranges(*pair.archive, *pair.journal, std::vector{range_of({0, 700 * kBlockBytes + 5}, 0)}));
  CHECK(content_of(pair.archive_path) ==
        content_of(pair.directory / "journal").substr(0, 700 * kBlockBytes + 5));
}

TEST_CASE("a failure of either file is the caller's", "[core][journal_apply]") {
  FaultyStorage storage;
  const JournalAndArchive pair(700, storage);
  const std::vector ranges = {range_of({0, 700 * kBlockBytes}, 0)};
  const auto call = GENERATE(FileCall::Read, FileCall::Write, FileCall::Clone);
  storage.plan().fail_call(call, 1, EIO);
  const auto applied = apply_ranges(*pair.archive, *pair.journal, ranges);
  REQUIRE_FALSE(applied);
  CHECK(applied.error().errno_value == EIO);
  REQUIRE(apply_ranges(*pair.archive, *pair.journal, ranges));
}

TEST_CASE("hash_blocks gives what append_block_hashes gives", "[core][journal_apply]") {
  const JournalAndArchive pair(600);
  const std::string all = content_of(pair.directory / "journal");
  const std::uint64_t size_bytes = GENERATE(0U, 1U, 4096U, 4097U, 600U * 4096U + 17U);
  std::vector<std::uint64_t> hashes;
  append_block_hashes(std::as_bytes(std::span(all.data(), size_bytes)), hashes);
  CHECK(hash_blocks(*pair.journal, {0, size_bytes}).value() == hashes);
  CHECK_FALSE(hash_blocks(*pair.journal, {all.size(), 1}));
}
