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

/// The default time that an opening waits for an edit of another process.
inline constexpr std::chrono::minutes kEditPatience{1};

/// A LocalReader with the calls that commits need. Any number of threads may read. Commits
/// (core/commit) write to file() after open_for_writing(), and then adopt their own change.
class Archive final : public LocalReader {
 public:
  /// Opens the archive. First applies the commits of dead writers (ReadWrite), or reads them from their
  /// journals (ReadOnly). Then checks every rule of the format and makes the data readable. ReadWrite fails
  /// with EACCES or EROFS if the file can't be written; the caller decides whether to retry with ReadOnly.
  /// The file is opened for writing only if there is a journal beside it; otherwise open_for_writing() does
  /// that later.
  /// @param wait_until  when to give up waiting for a process that changes its structure: EBUSY (Busy).
  static Result<std::unique_ptr<Archive>> open(const std::filesystem::path& path, Access access,
                                               Storage& storage = system_storage(), Io io = Io::Auto,
                                               Links links = Links::All,
                                               Deadline wait_until = deadline_in(kEditPatience));

  [[nodiscard]] Access access() const { return access_; }
  /// The journals that recovery found at opening. ReadOnly: only journals that may hold a commit that readers
  /// do not see (JournalReport::blocks_commits), and names that are no journals (is_ignored).
  [[nodiscard]] const std::vector<JournalReport>& recovered() const { return recovered_; }

  /// Returns true if a process has died in a commit, and its journal waits for recovery. Returns false if the
  /// journals can't be listed: no reader finds the commit then.
  [[nodiscard]] bool has_dead_commit() const;
  /// Finishes commits whose processes have died since the archive was opened. Applies their journals, or
  /// makes reads go through the journals if this process can't write. No commit of this object may run.
  /// @return true if a commit is visible now that readers did not see before.
  Result<bool> finish_dead_commits();

  /// Opens the file for writing, once: before the first write, and before any lock on the archive. On
  /// overlayfs this copies a whole file of a lower layer, which takes time. Reads continue during the copy,
  /// and come from the copy afterwards. EROFS if access() is ReadOnly. ESTALE (ArchiveChanged) if the file
  /// was replaced.
  Result<void> open_for_writing();
  /// The file, open for reading, and for writing after open_for_writing(). Lives as long as the archive.
  using LocalReader::file;
  /// The durability that a commit must reach at least. If another program serves the file, other hosts see
  /// only synced bytes.
  [[nodiscard]] Durability durability(Durability asked) const {
    return is_served_ ? Durability::Power : asked;
  }
  [[nodiscard]] ArchiveStamp stamp() const { return version()->stamp; }

  /// Returns true if another opening of the archive, by this process or another one, reads it, or if the
  /// locks can't be queried. Call it only after open_for_writing().
  [[nodiscard]] bool has_other_readers() const;
  /// Returns another process that has the archive open, if one can be found. Slow: for messages only.
  [[nodiscard]] std::optional<pid_t> other_reader() const;
  /// Keeps other readers out until let_readers_in(). Returns false if there are other readers.
  [[nodiscard]] bool keep_readers_out();
  void let_readers_in();

  /// The journal of small commits, if it has been prepared. Callers settle it when nothing is to be
  /// committed, and retire it at the end.
  [[nodiscard]] LaneJournal& lane_journal() { return lane_journal_; }
  /// Keeps a file that a commit no longer needs until take_discarded(): closing a large file takes time.
  void discard(std::unique_ptr<File> file);
  [[nodiscard]] std::vector<std::unique_ptr<File>> take_discarded();

  /// Void journals of this archive that recovery could not remove (JournalReport::is_left_void). Only for
  /// commits, which never overlap.
  [[nodiscard]] std::span<const std::filesystem::path> left_void() const { return left_void_; }
  void note_left_void(const std::vector<JournalReport>& reports);

  /// The journals that override the file for reads.
  using LocalReader::overlay;
  /// Makes every later commit fail, see WriteStop::begin().
  void stop_writing(Error why, std::filesystem::path journal) {
    write_stop_.begin(std::move(why), std::move(journal));
  }
  [[nodiscard]] Result<void> check_writable() const { return write_stop_.check(); }
  /// Ends stop_writing() if recovery has finished that journal. Changes nothing if the journal still exists.
  /// Fails if that can't be checked. Call it before a commit takes locks.
  Result<void> resume_writing();

  /// Adopts the file's identity after our own commit.
  /// @param written  the file's identity right after our last write, so that later writes by others are still
  ///                 noticed. Ignored if tells_writes_apart() is false.
  Result<void> adopt_own_change(const FileIdentity& written);
  /// Returns true if the file's times distinguish our own writes from foreign ones. False if a server or
  /// another host may set the times.
  [[nodiscard]] bool tells_writes_apart() const { return !is_served_ && !is_remote_; }
  /// A tensor whose bytes an edit has kept.
  struct KeptTensor {
    std::string_view name;  // after the edit
    TensorId tensor{};
  };
  /// Adopts a new structure, after our own edit or another program's: makes the next version, in which
  /// tensors keep their ids. Call it after the last change of the file, under the lock for edits.
  /// @param header  as it is in the file. ESTALE: the file has another size.
  /// @param kept  the tensors that are not new.
  Result<void> adopt_edit(std::shared_ptr<const ArchiveHeader> header, std::span<const KeptTensor> kept);
  /// While an edit moves tensors, and until end_move(), reads of the old places get their bytes from the
  /// places below. A caller that has pinned the previous version may still read there. Needs no memory.
  struct Moves {
    const File* journal = nullptr;
    std::vector<JournalRange> in_journal;  // old places, and where the journal has their bytes
    std::vector<JournalRange> in_archive;  // old places, and where the archive has their bytes
  };
  void show_moved(Moves moves);
  /// Call it when no reader uses the previous version.
  void end_move() { show_moved({}); }
  /// Syncs the file. Its content is then on stable storage for as long as its identity does not change.
  Result<void> sync();
  /// Calls sync(), unless a sync has succeeded while the file had its known identity. The content may come
  /// from another program, which has not synced it. A failure stops all writing: a later sync would succeed
  /// without those bytes.
  Result<void> sync_what_others_wrote();

 private:
  Archive(std::filesystem::path path, std::filesystem::path real_path, Access access, Storage& storage,
          std::shared_ptr<Storage> beside, std::unique_ptr<File> file);
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
  FileIdentity synced_ GUARDED_BY(mutex_);  // identity at the last sync; none before the first sync
  std::vector<std::unique_ptr<File>> discarded_ GUARDED_BY(mutex_);
};

}  // namespace stfs
