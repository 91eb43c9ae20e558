// What the bytes of one journal say: whether it is committed, to which archive, and whether it still counts.
//
// Of a sound record whose owner has died:
//
//   the archive          the record's boot    the archive's blocks             verdict
//   the same             none, or this one     (not looked at)                  committed
//   perhaps (no birth    none, or this one     each old, new, or torn           committed
//     times)                                     (torn: only with the inode)
//                                              some are neither                 foreign, blocks commits
//   the same or perhaps  a lost one            each old or new, some of each    committed: it is finished
//                                              anything else                    lost: removed
//   the same or perhaps  of another host       each old or new                  committed
//                                              some are neither                 foreign, blocks commits
//   another one          any                   (not looked at)                  foreign
//
// What is damaged, or waits for a coordinator that is, blocks commits; of a lost boot it is lost and removed.
//
// A boot is lost where this host runs another one now. A commit with durability=process ends with its boot:
// its name may come back after a loss of power although it was removed, and lie over newer commits.
#pragma once

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "core/storage/file.h"

namespace stfs {

/// What a journal is judged against.
struct JudgedArchive {
  Storage& storage;
  const File& file;
  const ArchiveStamp& stamp;
};

/// Fills in the state of a journal that is open and believed. `found.is_in_use` is known.
Result<void> judge_ordinary(const JudgedArchive& archive, FoundJournal& found, std::uint64_t size_bytes);
Result<void> judge_standing(const JudgedArchive& archive, FoundJournal& found, std::uint64_t size_bytes);

}  // namespace stfs
