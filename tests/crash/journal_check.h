// Checks recovery with journals that no commit wrote that way: damaged, forged, of another archive. The tests
// and the explorer share it; tests/fuzz checks a million journals, without a disk that crashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/base/byte_range.h"
#include "tests/crash/workload.h"

namespace stfs::test {

/// A committed journal on the disk that its owner has not applied yet.
struct ValidJournal {
  std::string path;
  Content bytes;
  ByteRange record;
  Content archive_before;
  Content archive_after;
};
const ValidJournal& valid_journal();
/// A valid journal from a disk whose files have no birth times.
const ValidJournal& valid_journal_without_birth();
/// A valid journal of patches by bytes.
const ValidJournal& valid_patches();
/// A valid journal of large_archive(), on a disk whose files share blocks. It also contains old blocks.
const ValidJournal& valid_journal_with_old_blocks();

/// Recovers with these bytes as the journal: as a dry run, as a reader, as a writer, and once more. The
/// archive must be unchanged or as the valid journal makes it; with forged hashes it must keep its size.
/// @param valid  the journal that `journal` was.
std::optional<std::string> check_journal(std::span<const std::byte> journal, bool is_forged,
                                         const ValidJournal& valid = valid_journal());

/// The valid journal, changed as tests/fuzz does. A script decides the changes. Forged: hashes were repaired.
struct MadeJournal {
  Content bytes;
  bool is_forged = false;
};
MadeJournal make_journal(std::span<const std::byte> script);

/// The valid journals of blocks and of patches, with each byte of its head and record damaged in turn, and
/// samples of the rest.
std::optional<std::string> check_every_byte();

/// Records that make no sense, with hashes that fit: they are never applied.
std::optional<std::string> check_forged_records();

/// Journals whose archive is another one now are never applied and never removed. Archives that are replaced
/// before a commit are never written to.
std::optional<std::string> check_identities();

}  // namespace stfs::test
