// Journals that no owner of ours wrote that way: damaged, forged, of another archive. Shared by the tests and
// the explorer; tests/fuzz does the same a million times, without a disk that crashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/base/byte_range.h"
#include "tests/crash/workload.h"

namespace stfs::test {

/// A committed journal that its owner has not applied yet, as it lies on the disk.
struct ValidJournal {
  std::string path;
  Content bytes;
  ByteRange record;
  Content archive_before;
  Content archive_after;
};
const ValidJournal& valid_journal();
/// The same, from a disk whose files have no birth times.
const ValidJournal& valid_journal_without_birth();
/// The same, of patches by bytes.
const ValidJournal& valid_patches();
/// Of another archive, large_archive(), on a disk whose files share blocks: it holds old ones, too.
const ValidJournal& valid_journal_with_old_blocks();

/// Recovers with these bytes as the journal: looking, for real, and once more, as writer and as reader. The
/// archive must be as it was, or as the valid journal says; where the hashes were forged too, at least as
/// large as it was.
/// @param valid  the journal that `journal` was.
std::optional<std::string> check_journal(std::span<const std::byte> journal, bool is_forged,
                                         const ValidJournal& valid = valid_journal());

/// Changes the valid journal as tests/fuzz does, by a script that decides how; forged where hashes were made
/// to agree again.
struct MadeJournal {
  Content bytes;
  bool is_forged = false;
};
MadeJournal make_journal(std::span<const std::byte> script);

/// The valid journals of blocks and of patches, with each byte of its head and record damaged in turn, and
/// samples of the rest.
std::optional<std::string> check_every_byte();

/// Records that make no sense, under hashes that agree: never applied.
std::optional<std::string> check_forged_records();

/// Journals whose archive is another one by now, and archives that are replaced before a commit: never
/// applied, never removed, never written to.
std::optional<std::string> check_identities();

}  // namespace stfs::test
