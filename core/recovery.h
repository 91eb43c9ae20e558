// Finding journals that a dead owner has left, and doing what they promise.
//
// The same code runs when an archive is opened for writing, before every commit, and in `stfs recover`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/journal_format.h"

namespace stfs {

enum class JournalState : std::uint8_t {
  Committed,   // whole, ours, its owner dead: to be applied
  InUse,       // its owner lives
  Unfinished,  // a leftover of staging, never committed: to be removed
  Foreign,     // belongs to another archive, or to another state of this one: never applied nor removed
  Damaged,     // its hashes do not agree: never applied nor removed; the archive is not written either
  Unknown,     // another version, a link, a directory, unreadable, waits for a coordinator: left alone
};
std::string_view name_of(JournalState state);

enum class JournalAction : std::uint8_t { None, Applied, Removed };

struct JournalReport {
  std::filesystem::path path;
  JournalState state = JournalState::Unknown;
  JournalAction action = JournalAction::None;
  std::string explanation;       // one sentence for a person
  std::uint64_t ranges = 0;      // of the record, where it could be read
  std::uint64_t size_bytes = 0;  // of the archive that they cover
};

struct RecoveryOptions {
  bool is_dry_run = false;  // look, change nothing
  /// Apply a Foreign journal too, where every block of the archive that it names is either the old one
  /// or the new one that its hashes tell.
  bool is_forced = false;
};

/// The archive's stamp as it is now: status, length and hash of the header.
Result<ArchiveStamp> stamp_of(const File& archive);

/// Looks at every journal of the archive and does what is due. The caller holds a shared lock on the
/// archive's header byte (or knows that nobody else is there); ranges are locked here. A failure to apply
/// a committed journal is an error; journals that can't be used are only reported.
Result<std::vector<JournalReport>> recover(Storage& storage, const std::filesystem::path& archive_path,
                                           File& archive, const RecoveryOptions& options = {});

/// A committed journal of a dead owner that could not be applied, since the archive can't be written: the
/// ranges that must be read from it instead. Their hashes have been checked.
struct PendingJournal {
  std::unique_ptr<File> file;
  std::vector<JournalRange> ranges;
};
Result<std::vector<PendingJournal>> pending_journals(Storage& storage,
                                                     const std::filesystem::path& archive_path,
                                                     const File& archive);

}  // namespace stfs
