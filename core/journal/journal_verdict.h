// Judges one journal by its bytes: whether it is committed, for which archive, and whether it is still valid.
//
// For a sound record whose owner has died:
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
//   another one          any                   (not looked at)                  foreign; removed if it is
//                                                                               part of a transaction over
//                                                                               archives without a group
//                                                                               record
//
// In an edit, which changes the stamp, the blocks always decide. The archive is another one if its inode or
// birth time differs, or if a block is neither old, new nor torn.
//
// A damaged journal blocks commits. A journal with a damaged group record blocks commits as well. In both
// cases the journal is lost instead, and removed, if its boot is lost.
//
// A transaction writes one journal for each archive. If a second journal of the archive names the same group
// record, the second journal is damaged. The group record is not read again for it, since it may be long.
//
// A long record that is mostly a hole is damaged: no commit writes one. If a record is longer than
// kMostRecordBytesOfOthers, it is read only if its owner is root or this user. Otherwise it blocks commits
// until its owner, whose own processes read it, has run a recovery. A record of that length is for a commit
// of 256 GiB, or of 512 GiB if files share blocks.
//
// A boot is lost if this host now runs another boot. A commit with durability=process ends with its boot: its
// name may come back after a power loss although it was removed, and applying it would overwrite newer
// commits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::uint64_t kMostRecordBytesOfOthers = std::uint64_t{1} << 30U;

/// The archive that a journal is judged against.
struct JudgedArchive {
  Storage& storage;
  const File& file;
  const ArchiveStamp& stamp;
  const FileStatus& status;  // strict_status_of() (core/storage/permissions.h): decides who may write it
  std::set<std::string>& group_records;  // the records by which this scan has judged its journals
  /// The verdicts of waits_in_vain() in this scan, by the name of the group record.
  std::map<std::string, std::optional<GroupVerdict>>& in_vain;
};

/// Fills in the state of an open, believed journal. The caller has set `found.is_in_use`.
/// @param file  its status.
Result<void> judge_ordinary(const JudgedArchive& archive, FoundJournal& found, const FileStatus& file);
Result<void> judge_lanes(const JudgedArchive& archive, FoundJournal& found, const FileStatus& file);

}  // namespace stfs
