// Finds journals that dead owners have left, and finishes or removes them.
//
// The same code runs when an archive is opened for writing, before every commit, and in `stfs recover`.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::chrono::seconds kRecoveryPatience{10};

struct RecoveryOptions {
  bool is_dry_run = false;  // only report; change nothing
  /// Apply a Foreign journal too, if every block of the archive that it names is either the old one or the
  /// new one, by the journal's hashes.
  bool is_forced = false;
  /// Recover only this archive, not the others of a transaction: the caller recovers these.
  bool is_alone = false;
  /// When to give up waiting for locks that others hold.
  Deadline wait_until = deadline_in(kRecoveryPatience);
};

/// The obstacle for a commit that holds the archive's locks on `locked`.
enum class Obstacle : std::uint8_t {
  None,
  DeadOwner,  // a committed journal waits: release the locks, call recover(), begin again
  /// A process uses a journal that names bytes of `locked`. No living committer can do so, because the caller
  /// holds these locks: it is a recovery that waits for them. Release the locks for a moment.
  Recovery,
  /// A living owner's lane journal names bytes of `locked`. Keep the locks: the owner settles its journal
  /// when it has nothing to commit, or when it meets the locks.
  Unsettled,
};
/// Finds the journals that the commit has to wait for. EIO: a journal blocks commits. EACCES: a journal waits
/// for recovery and this process may not write it.
/// @param own  the caller's own lane journal; empty without one.
/// @param left_void  journals that recover() has left void in this process (JournalReport::is_left_void). A
///                   commit does not wait for them.
Result<Obstacle> find_obstacle(Storage& storage, const std::filesystem::path& archive_path,
                               const File& archive, std::span<const ByteRange> locked,
                               const std::filesystem::path& own = {},
                               std::span<const std::filesystem::path> left_void = {});

/// Handles every journal of the archive according to its state. The caller holds no lock on a range of this
/// File: recover() takes the archive's locks and then the journal's own, as a committer does. It waits for a
/// living owner that is about to commit. It only reports a journal that can't be used. A failure to apply a
/// committed journal is an error.
///
/// A journal of a transaction over several archives that replaces the index is applied last: before that,
/// recover() finishes the other archives. The new index may not name them any more, and then no later opening
/// of the model finds their journals.
Result<std::vector<JournalReport>> recover(Storage& storage, const std::filesystem::path& archive_path,
                                           File& archive, const RecoveryOptions& options = {});

/// A committed journal of a dead owner that could not be applied, because the archive can't be written.
/// Readers read these ranges from the journal instead. Their hashes have been checked.
struct PendingJournal {
  std::unique_ptr<File> file;
  std::vector<JournalRange> ranges;
  std::optional<ArchiveShape> after{};     // set: the edited archive has this size and header
  std::optional<FileReplacement> index{};  // set: the model's index is the new one
};
struct PendingJournals {
  std::vector<PendingJournal> shown;  // later ones override earlier ones
  /// Journals that may hold a commit that can't be read here, and ignored files (JournalReport::is_ignored).
  std::vector<JournalReport> not_shown;
};
Result<PendingJournals> pending_journals(Storage& storage, const std::filesystem::path& archive_path,
                                         const File& archive);

}  // namespace stfs
