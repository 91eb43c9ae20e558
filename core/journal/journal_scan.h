// Finds the journals beside an archive and judges each as far as it can be read. Changes nothing.
//
// A scan takes no lock (F_OFD_GETLK), so that no other process takes the scanner for a journal's owner. It
// first asks whether the owner lives: the content of a living owner's journal is not hashed.
//
// The scan asks for the status of a name first. If no writer can have made the file, the file is never opened
// (JournalReport::is_ignored). So planted names, pipes and leases delay no user. Each scan asks for each
// status: root may give such a file to a writer of the archive (chown), which changes no directory.
//
// A journal blocks commits if it can't be read, or if its right to the archive can't be known: a process that
// can read it would later apply it over newer commits.
//
// If a journal vanishes during the scan, the scan begins again: its owner may have renamed it, or published
// the next one. On network file systems each step may find that the journal does not exist (ENOENT, ESTALE).
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
  Committed,   // whole, for this archive, its owner dead: recovery applies it
  InUse,       // its owner lives; its new blocks have not been checked
  Unfinished,  // a leftover of staging, never committed, or lost with its boot: recovery removes it
  Foreign,     // made for another archive, or another state of this one: never applied nor removed
  Damaged,     // its hashes do not agree: never applied nor removed; the archive is not written either
  Unknown,     // another version, a link, a directory, unreadable, or not believed: left alone
};
std::string_view name_of(JournalState state);

enum class JournalAction : std::uint8_t { None, Applied, Removed };

struct JournalReport {
  std::filesystem::path path;
  JournalState state = JournalState::Unknown;
  JournalAction action = JournalAction::None;
  /// This journal blocks commits: its content can't be known here (Damaged, another version, unreadable, not
  /// believed, part of a transaction over several archives). Readers may miss a commit.
  bool blocks_commits = false;
  /// The journal has been made void, so it promises nothing any more. Its name stays: the directory has the
  /// sticky bit, and this process may not remove the name.
  bool is_left_void = false;
  std::string explanation;       // one sentence for a person
  std::string next_step;         // what that person can do; empty where the explanation is enough
  std::string settlers;          // the users that may write and remove it: "user 1000 or root"
  std::uint64_t ranges = 0;      // number of ranges in the record; 0 if it could not be read
  std::uint64_t size_bytes = 0;  // bytes of the archive that these ranges cover
  /// No writer can have made this file: it is no regular file, or its owner has no right to write the
  /// archive. The scan has not opened the file. The file is named in a report, and blocks no commit.
  bool is_ignored = false;
  /// Only the first kMostIgnoredNames such files have a report. The last of these reports counts the others.
  std::uint64_t more_ignored = 0;
};
inline constexpr std::size_t kMostIgnoredNames = 100;

/// One journal. A directory may hold thousands of planted names, so a file stays open only while the journal
/// is in use or committed.
struct FoundJournal {
  JournalReport report;
  std::unique_ptr<File> file;  // null if not open: open_found() opens it again
  FileIdentity identity;       // the file's identity, once it was opened
  JournalRecord record;
  /// This is a lane journal (lane_journal.h). While it is in use, `record` has the ranges of both
  /// lanes.
  bool is_lane_journal = false;
  /// The journal reads as void (it has no record). The disk may still hold a record.
  bool is_void = false;
  /// Its owner or a recovery is using it.
  bool is_in_use = false;
  /// This process may not write the journal, so it can't settle it. `settlers` names the users that can.
  bool is_read_only = false;
  std::uint32_t uid = 0;  // the user id of its owner
  std::string settlers;
  std::string advice;  // to the user of this process, if it may not read or write the journal
  /// Reports leave this journal out: it is a group record whose journals are reported, or a journal that was
  /// removed, or one that its owner has taken back.
  bool is_hidden = false;
};

/// Returns true if a journal, a group record, a new index or a file that is being staged, of any archive, can
/// have this name. Stricter than is_journal_file_name(), which also accepts names of other versions.
bool is_journal_name(std::string_view file_name);

/// Returns the archive's current stamp: its status, and the length and hash of its header.
Result<ArchiveStamp> stamp_of(const File& archive);

/// Returns the journals in the order of their commits. A failure to read one is an error: skipping a
/// committed journal would leave the archive torn. Unlistable: this process may not list the directory.
/// @param archive_path  must have no symbolic links: the journals are in its directory.
/// @param own  the caller's own journal, which is left out.
Result<std::vector<FoundJournal>> scan_journals(Storage& storage, const std::filesystem::path& archive_path,
                                                const File& archive, const std::filesystem::path& own = {});

/// Opens the file again if it is not open. False if the name does not exist or names another file, or if this
/// journal was never opened.
Result<bool> open_found(Storage& storage, FoundJournal& found);

/// Judges a journal again as one whose owner has died. The caller holds the journal's lock. False if the
/// journal does not exist any more.
Result<bool> judge_again(Storage& storage, const std::filesystem::path& archive_path, const File& archive,
                         FoundJournal& found);

/// Checks the hash of every block of new bytes. InvalidArgument if one differs from the record.
Result<void> check_new_blocks(const File& file, const JournalRecord& record);
/// Returns true if the journal is void: its head is zeros, because its owner has taken it back, or the file
/// is empty after a power loss.
Result<bool> is_void(const File& file, std::uint64_t size_bytes);
/// Returns true if the path names this file. False if the path does not exist or names another file.
Result<bool> is_at(Storage& storage, const std::filesystem::path& path, const FileStatus& file);

}  // namespace stfs
