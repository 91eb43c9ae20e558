// One open `.safetensors` file: reads it, and lets commits write it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/archive/local_reader.h"
#include "core/archive/write_stop.h"
#include "core/base/deadline.h"
#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/name_hash.h"
#include "core/journal/lane_journal.h"
#include "core/journal/recovery.h"
#include "core/storage/file.h"

namespace stfs {

/// How long an opening waits, unless its caller knows better, for an edit by another process.
inline constexpr std::chrono::minutes kEditPatience{1};

/// Adds to a LocalReader what commits need. Any number of threads may read. Writing goes through Transaction,
/// which alone calls open_for_writing(), writes to file() and then calls adopt_own_change().
class Archive final : public LocalReader {
 public:
  /// Opens the archive. First finishes what dead writers have committed (ReadWrite), or reads it from their
  /// journals (ReadOnly). Then checks every rule of the format and makes the data readable. ReadWrite fails
  /// with EACCES or EROFS if the file can't be written; the caller decides whether to try ReadOnly then. The
  /// file is opened for writing only if a journal lies beside it; otherwise open_for_writing() does that
  /// later.
  /// @param wait_until  how long to wait for a process that changes its structure. Then EBUSY (Busy).
  static Result<std::unique_ptr<Archive>> open(const std::filesystem::path& path, Access access,
                                               Storage& storage = system_storage(), Io io = Io::Auto,
                                               Links links = Links::All,
                                               Deadline wait_until = deadline_in(kEditPatience));

  [[nodiscard]] Access access() const { return access_; }
  /// The journals that recovery found at opening. ReadOnly: only journals that may hold a commit that readers
  /// do not see (JournalReport::blocks_commits), and names that are no journals (is_ignored).
  [[nodiscard]] const std::vector<JournalReport>& recovered() const { return recovered_; }

  /// Whether a process has died in a commit, and its journal waits for recovery. False if the journals can't
  /// be listed: no reader finds the commit then.
  [[nodiscard]] bool has_dead_commit() const;
  /// Finishes what processes have left that died in a commit after the archive was opened: applies their
  /// journals, or makes reads go through them if this process can't write. No commit of this object may run.
  /// @return whether there was any that readers did not see.
  Result<bool> finish_dead_commits();

  /// Opens the file for writing, once: before the first write, and before any lock on the archive. On
  /// overlayfs this copies a whole file of a lower layer, which takes time. Reads go on meanwhile, and come
  /// from the copy afterwards. EROFS if access() is ReadOnly. ESTALE (ArchiveChanged) if the file was
  /// replaced.
  Result<void> open_for_writing();
  /// The file, open for reading, and for writing after open_for_writing(). Lives as long as the archive.
  using LocalReader::file;
  /// The durability that a commit must reach at least. If another program serves the file, other hosts see
  /// only synced bytes.
  [[nodiscard]] Durability durability(Durability asked) const {
    return is_served_ ? Durability::Power : asked;
  }
  [[nodiscard]] ArchiveStamp stamp() const { return version()->stamp; }

  /// Whether another opening of the archive, by this process or another one, reads it. True if that can't be
  /// known. Only after open_for_writing().
  [[nodiscard]] bool has_other_readers() const;
  /// A process that has it open besides, if it can be found. Slow: for messages only.
  [[nodiscard]] std::optional<pid_t> other_reader() const;
  /// Keeps other readers out until let_readers_in(): false if there are any.
  [[nodiscard]] bool keep_readers_out();
  void let_readers_in();

  /// The journal of small commits, once prepared. Callers settle it when nothing is to be committed, and
  /// retire it at the end.
  [[nodiscard]] LaneJournal& lane_journal() { return lane_journal_; }
  /// Keeps a file that a commit no longer needs until take_discarded(): closing a large file takes time.
  void discard(std::unique_ptr<File> file);
  [[nodiscard]] std::vector<std::unique_ptr<File>> take_discarded();

  /// The journals that recovery has made void here and could not remove (JournalReport::is_left_void). Only
  /// for commits, which never overlap.
  [[nodiscard]] std::span<const std::filesystem::path> left_void() const { return left_void_; }
  void note_left_void(const std::vector<JournalReport>& reports);

  /// What reads get from journals meanwhile.
  using LocalReader::overlay;
  /// Makes every later commit fail, see WriteStop::begin().
  void stop_writing(Error why, std::filesystem::path journal) {
    write_stop_.begin(std::move(why), std::move(journal));
  }
  [[nodiscard]] Result<void> check_writable() const { return write_stop_.check(); }
  /// Ends stop_writing() if recovery has finished that journal. Changes nothing if the journal is still
  /// there, or if that can't be known. Call it before a commit takes locks.
  Result<void> resume_writing();

  /// Adopts the file's identity after our own commit.
  /// @param written  the file's identity right after our last write, so that later writes by others are still
  ///                 noticed. Ignored if a server sets the file's times: then nobody can tell writes apart.
  Result<void> adopt_own_change(const FileIdentity& written);
  /// Whether the file's times tell our own writes from foreign ones.
  [[nodiscard]] bool tells_writes_apart() const { return !is_served_ && !is_remote_; }
  /// Adopts the structure that our own edit has given the archive: makes the next version, in which tensors
  /// keep their ids. Call it after the last change of the file, under the lock for edits.
  /// @param header  the length and the JSON, with its padding.
  /// @param before  for each name that was not new: the tensor that had its bytes.
  Result<void> adopt_own_edit(std::string_view header, const NameMap<std::string_view, TensorId>& before);
  /// While an edit moves tensors, and until end_move(), reads of their old places get their bytes from
  /// elsewhere: a caller that has pinned the version before may be about to read. Needs no memory.
  struct Moves {
    const File* journal = nullptr;
    std::vector<JournalRange> in_journal;  // old places, and where their bytes are in the journal
    std::vector<JournalRange> in_archive;  // and in the archive
  };
  void show_moved(Moves moves);
  /// Call it when no reader uses the version before.
  void end_move() { show_moved({}); }
  /// Syncs the file. Its content is then on stable storage for as long as its identity does not change.
  Result<void> sync();
  /// Calls sync(), unless the content that the file had when its identity was adopted is known to be on
  /// stable storage: as far as the mtime tells, somebody else may have written it without a sync. A failure
  /// stops all writing: a later sync would succeed without those bytes.
  Result<void> sync_what_others_wrote();

 private:
  Archive(std::filesystem::path path, std::filesystem::path real_path, Access access, Storage& storage,
          std::unique_ptr<File> file);
  static Result<std::unique_ptr<Archive>> open_unguarded(const std::filesystem::path& path, Access access,
                                                         Storage& storage, Io io, Links links,
                                                         Deadline wait_until);
  /// Takes the readers' lock, settles or overlays the journals, and loads the first version. Waits while
  /// another process changes the archive's structure.
  Result<void> recover_and_load(Io io, Deadline wait_until);
  [[nodiscard]] bool has_journal_that_is(std::initializer_list<JournalState> states) const;
  Result<void> recover_journals(Deadline wait_until);
  Result<void> open_for_writing_unguarded();

  const Access access_;
  const bool is_served_;
  const bool is_remote_;  // another host may set its times
  std::vector<JournalReport> recovered_;
  std::vector<std::filesystem::path> left_void_;
  LaneJournal lane_journal_;
  WriteStop write_stop_;

  Mutex opening_mutex_ ACQUIRED_BEFORE(mutex_);  // taken before all others
  std::unique_ptr<File> writable_ GUARDED_BY(opening_mutex_);

  Moves moves_;  // overlay() refers to it; only for commits

  Mutex mutex_;                             // taken before LocalReader's
  FileIdentity synced_ GUARDED_BY(mutex_);  // identity at the last sync; of no file before the first
  std::vector<std::unique_ptr<File>> discarded_ GUARDED_BY(mutex_);
};

}  // namespace stfs
