// A journal that one writer keeps beside the archive for its small commits: making, naming and removing a
// file for each commit takes longer than all other steps together.
//
// The file has its name and its size from the beginning, so that one sync of overwritten bytes is a commit.
// Its two lanes are used in turn:
//
//     lane 0   commit 1 | void      | commit 3 | void
//     lane 1            | commit 2  |          | commit 4 ...       each column: one write, one sync
//
// Invariants, beside journal.h's 1, 3 and 4:
//  1. When a commit begins, the archive's bytes that all earlier commits name are on stable storage.
//  2. A lane is written only after its head was made void (zeros) on stable storage. A lane holds one commit,
//     whole or torn, and never parts of two.
//  3. The sync that commits one lane makes the other lane's head void.
//  4. The last commit's record stays after the archive's locks are released. No other process changes a block
//     that it names before the owner has settled: made the record void on stable storage. Otherwise recovery
//     after a power loss would apply it over newer commits.
//  5. Head and record exist twice. If neither copy is sound, the committing sync was never finished, and the
//     archive was not touched.
//  6. Before a record is written that must survive a power loss, the archive's content under its blocks is on
//     stable storage, even if another program wrote it (Archive::sync_what_others_wrote()). A power loss
//     during the committing sync may leave the head on the disk without the new bytes. The archive's old
//     blocks then prove that the sync was not finished; still older content would look like damage.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// Has no file until prepare(). For one thread at a time, except is_ready().
class LaneJournal {
 public:
  /// @param archive  the open archive, which must outlive this object.
  LaneJournal(Storage& storage, std::filesystem::path archive_path, const File& archive)
      : storage_(storage), archive_path_(std::move(archive_path)), archive_(archive) {}

  /// Notes a small commit that needed a separate file.
  void note_small_commit() { ++small_commits_; }
  /// Returns true if prepare() pays off: the owner makes several small commits, has no file yet, and locks
  /// exist here.
  [[nodiscard]] bool is_wanted() const { return small_commits_ > 1 && !file_ && !lacks_locks_; }
  /// Makes the file on stable storage, if there is none. Makes no file if the file system has no locks: other
  /// processes could not check whether the owner lives.
  Result<void> prepare();
  /// Returns true if a commit may go through this journal. Any thread may call it.
  [[nodiscard]] bool is_ready() const { return is_ready_.load(std::memory_order_acquire); }
  /// The file's name; empty without a file.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// THE COMMIT POINT of a change of at most kLaneBlocks blocks. After a failure nothing is committed, and
  /// the file is given up. If that can't be ensured, the error's code is CommitUnknown.
  /// @param staged  holds the new bytes at the places that the record names.
  Result<void> commit(JournalRecord record, const File& staged, Durability durability);
  /// False while a lane holds a commit's record: other writers then wait for settle() before they change its
  /// blocks.
  [[nodiscard]] bool is_settled() const { return !has_record_; }
  /// Makes the last commit's record void. The caller has made the archive's bytes of that commit as durable
  /// as asked for.
  Result<void> settle(Durability durability);
  /// Settles and removes the file.
  Result<void> retire(Durability durability);
  /// Closes the file if a step after the commit point fails. The file stays, and any process with the right
  /// to do so may now recover it.
  void give_up();

 private:
  Result<void> prepare_unguarded();
  /// Gives the file the access of a new journal (journal_access.h) if the archive's owner, group or mode has
  /// changed since the last time: the file may live as long as a mount.
  Result<void> follow_access();
  Result<void> write(std::span<const std::byte> bytes, std::uint64_t offset, Durability durability);
  /// Gives the file up after a failed write or sync, when its content is not known. False if the file may
  /// still hold a commit.
  bool take_back();

  Storage& storage_;
  const std::filesystem::path archive_path_;
  const File& archive_;
  std::filesystem::path path_;
  std::unique_ptr<File> file_;
  JournalId id_;
  FileNumbers own_;
  std::size_t lane_ = 0;  // the lane of the next commit
  bool has_record_ = false;
  bool lacks_locks_ = false;
  std::uint64_t small_commits_ = 0;
  FileStatus access_;  // the archive's status when the file got its access
  std::atomic<bool> is_ready_ = false;
};

}  // namespace stfs
