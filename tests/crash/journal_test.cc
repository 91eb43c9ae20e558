// Journals are hostile input: with any journal, the archive is unchanged or as a valid journal makes it.
// tests/fuzz tests random damage.
#include "tests/crash/journal_check.h"
#include "tests/support/catch.h"

namespace stfs::test {

TEST_CASE("journal: the valid one is applied", "[crash][journal]") {
  const ValidJournal& valid = valid_journal();
  REQUIRE(valid.archive_before != valid.archive_after);
  DiskModel disk;
  const InodeNumber archive = disk.put(kArchivePath, valid.archive_before);
  disk.put(valid.path, valid.bytes);
  const auto process = disk.start_process();
  CHECK(Archive::open(kArchivePath, Access::ReadWrite, *process));
  CHECK(disk.image().has_content(archive, valid.archive_after));
  CHECK(disk.image().inode_at(valid.path) == 0);
}

TEST_CASE("journal: every single byte that is damaged is noticed or does not matter", "[crash][journal]") {
  if (const auto wrong = check_every_byte()) FAIL(*wrong);
}

TEST_CASE("journal: a record that makes no sense is not applied, whatever its hashes say",
          "[crash][journal]") {
  if (const auto wrong = check_forged_records()) FAIL(*wrong);
}

TEST_CASE("journal: cut short anywhere, it is not applied or whole", "[crash][journal]") {
  const Content& journal = valid_journal().bytes;
  for (std::size_t size = 0; size < journal.size();
       size += size < 100 || size + 400 > journal.size() ? 1 : 61) {
    if (const auto wrong = check_journal(std::span(journal).first(size), false))
      FAIL("size " << size << ": " << *wrong);
  }
}

TEST_CASE("journal: of another archive it is left alone, and a replaced archive is not written",
          "[crash][journal]") {
  if (const auto wrong = check_identities()) FAIL(*wrong);
}

}  // namespace stfs::test
