// The journals that lie beside an archive, each understood as far as it can be, nothing changed.
//
// A look takes no lock (F_OFD_GETLK), so that nobody who looks passes for a journal's owner. The first
// question is whether the owner lives: what a living owner has written is not hashed.
//
// A journal of this name that can't be read, or whose right to the archive can't be told, blocks commits:
// somebody who can read it would apply it over them later.
//
// A journal that vanishes while it is looked at is gone, and the scan begins again: its owner may have given
// it another name, or published the next one. On network file systems each step may find this out (ENOENT,
// ESTALE).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

enum class JournalState : std::uint8_t {
  Committed,   // whole, ours, its owner dead: to be applied
  InUse,       // its owner lives; its new blocks have not been looked at
  Unfinished,  // a leftover of staging, never committed, or lost with its boot: to be removed
  Foreign,     // belongs to another archive, or to another state of this one: never applied nor removed
  Damaged,     // its hashes do not agree: never applied nor removed; the archive is not written either
  Unknown,     // another version, a link, a directory, unreadable, of a stranger: left alone
};
std::string_view name_of(JournalState state);

enum class JournalAction : std::uint8_t { None, Applied, Removed };

struct JournalReport {
  std::filesystem::path path;
  JournalState state = JournalState::Unknown;
  JournalAction action = JournalAction::None;
  /// Nothing may be committed beside it: what it has promised to the archive can't be known here (Damaged,
  /// another version, unreadable, of a stranger, part of a transaction over several archives). What readers
  /// see may lack a commit.
  bool blocks_commits = false;
  /// It has been made void, so it promises nothing any more. Its name stays: in a directory with the sticky
  /// bit this process may not remove it.
  bool is_left_void = false;
  std::string explanation;       // one sentence for a person
  std::string next_step;         // what that person can do; empty where the state says it all
  std::string settlers;          // who may write and remove it: "user 1000 or root"
  std::uint64_t ranges = 0;      // of the record, where it could be read
  std::uint64_t size_bytes = 0;  // of the archive that they cover
};

/// One journal, open.
struct FoundJournal {
  JournalReport report;
  std::unique_ptr<File> file;
  JournalRecord record;
  /// standing_journal.h. In use, its record has the ranges of both lanes.
  bool is_standing = false;
  /// It holds no record as it looks here; on the disk it may still hold one.
  bool is_void = false;
  /// Its owner, or somebody's recovery, is at work on it.
  bool is_in_use = false;
  /// This process may not write it, so that it can't settle it. Then `settlers` tells who can.
  bool is_read_only = false;
  std::string settlers;
  /// There is nothing to tell about it, so reports leave it out: a coordinator whose journals tell all, or a
  /// journal that has gone or was taken back by its owner.
  bool is_hidden = false;
};

/// The archive's stamp as it is now: status, length and hash of the header.
Result<ArchiveStamp> stamp_of(const File& archive);

/// In the order of their commits. A failure to look is an error: a committed journal that is passed over
/// leaves the archive torn. Unlistable: the directory can't be searched by this process.
/// @param archive_path  without links: beside it lie the journals.
/// @param own  a journal that is left out: the caller's own.
Result<std::vector<FoundJournal>> scan_journals(Storage& storage, const std::filesystem::path& archive_path,
                                                const File& archive, const std::filesystem::path& own = {});

/// Judges a journal once more, for whoever holds its lock: as one whose owner has died. False where it has
/// gone.
Result<bool> judge_again(Storage& storage, const std::filesystem::path& archive_path, const File& archive,
                         FoundJournal& found);

/// Every block of new bytes has the hash that the record tells; else InvalidArgument.
Result<void> check_new_blocks(const File& file, const JournalRecord& record);
/// Its owner has taken it back: the head is zeros. Or a loss of power has left it empty.
Result<bool> is_void(const File& file, std::uint64_t size_bytes);
/// What is at the path is this very file; false where it has gone or is another one.
Result<bool> is_at(Storage& storage, const std::filesystem::path& path, const FileStatus& file);

}  // namespace stfs
