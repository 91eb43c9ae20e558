// A journal that stays beside its archive between the small commits of one writer: making, naming and
// removing a file for each of them takes longer than all the rest.
//
// It has its name and its size from the beginning, so that one sync of bytes in place is a commit. Its two
// lanes are used in turn:
//
//     lane 0   commit 1 | void      | commit 3 | void
//     lane 1            | commit 2  |          | commit 4 ...       each column: one write, one sync
//
// Invariants, beside journal.h's 1, 3 and 4:
//  1. When a commit begins, the archive's bytes that all earlier ones name are on stable storage.
//  2. A lane is written only after its head was made void (zeros) on stable storage: what is found in a
//     lane is one commit, whole or torn, never two.
//  3. The sync that commits one lane makes the other's head void.
//  4. The last commit's record stays after its locks have gone. Nobody else changes a block that it names
//     before the owner has settled: made it void on stable storage. Else, after a loss of power, recovery
//     would apply it over what they have committed.
//  5. Head and record are there twice: where neither is sound, the sync that commits was never done, and
//     the archive was not touched.
//  6. Before a record is written that must survive a loss of power, what the archive holds under its blocks
//     is on stable storage, whoever wrote it (Archive::sync_what_others_wrote()). The sync that commits may
//     be cut short with the head on the disk and the new bytes not: the archive's old blocks tell then that
//     it was never done, and older ones would pass for damage.
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

/// Begins without a file. Used by one thread at a time, but for is_ready().
class StandingJournal {
 public:
  StandingJournal(Storage& storage, std::filesystem::path archive_path)
      : storage_(storage), archive_path_(std::move(archive_path)) {}

  /// A small commit had to go through a file of its own.
  void note_small_commit() { ++small_commits_; }
  /// Its owner is one who makes several.
  [[nodiscard]] bool is_wanted() const { return small_commits_ > 1 && !file_ && !lacks_locks_; }
  /// Makes the file, durable, where there is none. Not where the file system has no locks: nobody could tell
  /// that its owner lives.
  Result<void> prepare();
  /// A commit may go through it.
  [[nodiscard]] bool is_ready() const { return is_ready_.load(std::memory_order_acquire); }
  /// The file's name; empty without one.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// THE COMMIT POINT of a change of at most kLaneBlocks blocks. After a failure nothing is committed, and
  /// the file is given up; where that can't be made sure, the error's code is CommitUnknown.
  /// @param staged  holds the new bytes at the places that the record names.
  Result<void> commit(JournalRecord record, const File& staged, Durability durability);
  /// A commit's record is in it: others wait for settle() before they change its blocks.
  [[nodiscard]] bool is_settled() const { return !has_record_; }
  /// The archive's bytes of the last commit are as durable as asked for: makes its record void.
  Result<void> settle(Durability durability);
  /// Settles and removes the file.
  Result<void> retire(Durability durability);
  /// After a failure behind the commit point: the file stays, and whoever can may recover it now.
  void give_up();

 private:
  Result<void> prepare_unguarded();
  Result<void> write(std::span<const std::byte> bytes, std::uint64_t offset, Durability durability);
  /// After a failed write or sync, when what the file holds is not known: gives it up. False where it may
  /// still hold a commit.
  bool take_back();

  Storage& storage_;
  const std::filesystem::path archive_path_;
  std::filesystem::path path_;
  std::unique_ptr<File> file_;
  JournalId id_;
  std::size_t lane_ = 0;  // the next commit's
  bool has_record_ = false;
  bool lacks_locks_ = false;
  std::uint64_t small_commits_ = 0;
  std::atomic<bool> is_ready_ = false;
};

}  // namespace stfs
