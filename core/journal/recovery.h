// Finding journals that a dead owner has left, and doing what they promise.
//
// The same code runs when an archive is opened for writing, before every commit, and in `stfs recover`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "core/storage/file.h"

namespace stfs {

struct RecoveryOptions {
  bool is_dry_run = false;  // look, change nothing
  /// Apply a Foreign journal too, where every block of the archive that it names is either the old one
  /// or the new one that its hashes tell.
  bool is_forced = false;
};

/// What a commit finds in its way, when it holds the archive's locks on `locked`.
enum class Obstacle : std::uint8_t {
  None,
  DeadOwner,  // a committed journal waits: give the locks up, recover(), begin again
  Recovery,   // somebody is at work on a journal that names bytes of `locked`, and no living committer can
              // be: a recovery that waits for our locks. Give them up for a moment.
  Unsettled,  // a living owner's standing journal names bytes of `locked`. Keep the locks: he settles when he
              // has nothing to commit, or meets them.
};
/// Fails where a journal blocks commits (EIO), or waits for recovery and can't be written by this process
/// (EACCES).
/// @param own  the caller's own standing journal; empty without one.
/// @param left_void  what recover() has left in this process (JournalReport::is_left_void): in nobody's way.
Result<Obstacle> find_obstacle(Storage& storage, const std::filesystem::path& archive_path,
                               const File& archive, std::span<const ByteRange> locked,
                               const std::filesystem::path& own = {},
                               std::span<const std::filesystem::path> left_void = {});

/// Looks at every journal of the archive and does what is due. The caller holds no lock on a range of this
/// File: they are taken here, before the journal's own, as a committer takes them. What a living owner is
/// about to commit is waited for; a journal that can't be used is only reported; a failure to apply a
/// committed one is an error.
Result<std::vector<JournalReport>> recover(Storage& storage, const std::filesystem::path& archive_path,
                                           File& archive, const RecoveryOptions& options = {});

/// A committed journal of a dead owner that could not be applied, since the archive can't be written: the
/// ranges that must be read from it instead. Their hashes have been checked.
struct PendingJournal {
  std::unique_ptr<File> file;
  std::vector<JournalRange> ranges;
};
struct PendingJournals {
  std::vector<PendingJournal> shown;     // later ones lie over earlier ones
  std::vector<JournalReport> not_shown;  // they may hold a commit that can't be known here
};
Result<PendingJournals> pending_journals(Storage& storage, const std::filesystem::path& archive_path,
                                         const File& archive);

}  // namespace stfs
