// Executes commit plans of one archive or of several archives together: all of them or none, even after a
// crash.
//
// commit() takes these steps (core/DURABILITY.md). Each step handles all archives in order of their paths, so
// that two groups can't wait for each other. A failure before step 6 leaves the archives untouched and the
// stages as they were, so that the caller may try again or give up. Only if a journal itself has failed, its
// stages are lost (journal.h).
//   1. plan: check that every stage has exactly its tensor's size, and list the operations
//   2. lock: shared on the header byte, exclusive on the blocks, in ascending order; recover the journals of
//      dead owners
//   3. check that the path still names the archive that was opened, with the same header
//   4. complete the first and last blocks
//   5. seal: sync the archive if others may have written into it and recovery would need the old content;
//      hash the new blocks; share or hash the old blocks; seal the journal (one fsync). The journals of
//      several archives name a group record (group_record.h), which is sealed last
//   6. publish each journal (fsync of the directory), and the group record last: THE COMMIT POINT. With a
//      lane journal (lane_journal.h), the fsync of step 5 is the commit point
//   7. apply: clone or write every block, while readers read the journal; fdatasync the archive. The archive
//      whose journal replaces the index, or the sync state, is the last one
//   8. retire each journal; then unlock all archives, and remove the group record
// Step 3 makes a new index or sync state as a file without a name. The file gets its name at the end of step
// 7. An edit (archive_edit.h) differs in these steps. Step 2 locks the header byte exclusively, and waits for
// every journal. Step 3 keeps readers out if the edit overwrites or frees bytes, and reserves the space that
// step 7 needs. A compaction (compaction.h) then copies bytes to fillers, and syncs them. Step 4 copies the
// bytes that move. During step 7 the header is hidden (journal_apply.h); then the index is replaced. Step 8
// frees the space of fillers, and the archive adopts its new structure. Reads of tensors that have moved use
// the old places until the caller calls Archive::end_move().
//
// After a failure in step 7 the journal stays and holds the valid bytes, and the group record stays also.
// That archive refuses further writes, and reads of these ranges come from the journal until it can be
// applied. The error's message says this. The other archives are finished, except the one that replaces the
// index: the old index names all archives, so that the next opening of the model for writing finds their
// journals.
//
// Commits of one Archive object never overlap in time, with one exception: a large patch of one archive lends
// its turn (CommitOptions::lend_turn). Whole other commits then run inside of its steps 5 and 7. During that
// time the large commit only reads its old blocks and syncs its journal. Invariants:
//   1. A commit beside another one is a patch of other blocks. It changes none of the old blocks that the
//      large commit has hashed, and none of the blocks that the large commit completes. In recovery the order
//      of the two commits does not matter.
//   2. The large commit keeps its locks. The other commit takes only the locks of its blocks
//      (ArchiveLocks::for_blocks()), so that its release leaves the header's byte locked. It runs no
//      recovery, because recovery takes and releases locks of this process on all blocks that a journal
//      names. Instead it fails with Busy.
//   3. The large commit settles the lane journal before it lends its turn, and does not use it afterwards.
//   4. Whenever the turn is lent, the archive's known identity is the identity after the last own write: the
//      other commit notices changes by others, and only these. When the turn is back, the identity shows
//      whether others have written.
//   5. Readers get the blocks of each of the two commits from its journal while it is applied.
//   6. If a commit stops all writing, the large commit ends also: in step 5 with nothing changed; in step 7
//      it leaves its journal to recovery. A failed sync may have lost the writes of both commits.
//   7. With durability=power few pieces of the archive wait for the disk when the turn is lent
//      (PiecesOnTheWay): the other commit syncs the archive, and must not wait for more.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/reader_writer_lock.h"
#include "core/commit/commit_locks.h"
#include "core/commit/commit_options.h"
#include "core/commit/commit_plan.h"
#include "core/commit/edit_space.h"
#include "core/commit/transaction.h"

namespace stfs {

/// Excludes the readers of every touched tensor while the place changes that they read from. A lock that
/// several tensors share is taken once. All locks are taken in one order. While readers are excluded, no code
/// waits for the disk.
class ReadersOut {
 public:
  void add(ReaderWriterLock& lock) { locks_.push_back(&lock); }
  /// Called after the last add(). The calls after it need no memory.
  void make_ready() {
    std::ranges::sort(locks_);
    locks_.erase(std::unique(locks_.begin(), locks_.end()), locks_.end());
    held_.reserve(locks_.size());
  }
  /// Takes the locks, calls `change`, and releases the locks.
  template <class Change>
  void during(const Change& change) {
    for (ReaderWriterLock* lock : locks_) held_.emplace_back(*lock);
    change();
    held_.clear();
  }

 private:
  std::vector<ReaderWriterLock*> locks_;
  std::vector<std::unique_lock<ReaderWriterLock>> held_;
};

/// Used by one thread, for one commit.
class CommitProtocol {
 public:
  /// Adds the part of one archive. A part without stages changes nothing. All arguments must outlive the
  /// commit.
  void add(Transaction& transaction, const CommitOptions& options, const Transaction::LockOf& lock_of);

  /// Fails as Transaction::commit() does. EOPNOTSUPP (InvalidArgument): the archives are in different
  /// directories, so that a group record could not be found from each of them.
  Result<void> commit();

 private:
  /// The state that a commit keeps for one archive between its steps.
  struct Part {
    Transaction* transaction = nullptr;
    const CommitOptions* options = nullptr;
    const Transaction::LockOf* lock_of = nullptr;
    CommitPlan plan;
    ArchiveLocks locks;
    ReadersKeptOut readers_kept_out;
    ReservedSpace reserved;
    ReadersOut readers;
    bool lends = false;        // lends its turn while it seals and applies
    bool has_company = false;  // another commit has run while the turn was lent
    std::optional<FileReplacement> index{};
    std::unique_ptr<File> prepared_index;
    Archive::Moves moves;        // shown while the edit is applied
    Archive::Moves moves_after;  // shown from then on, until the caller ends them
    Error stopped;               // prepared in advance, for stop()

    [[nodiscard]] Archive& archive() const { return transaction->archive_; }
    [[nodiscard]] Journal& journal() const { return *transaction->journal_; }
    /// Always Power for an edit: a loss of power that undid a part of it could leave no valid header.
    [[nodiscard]] Durability durability() const;
  };
  Result<void> commit_unguarded();
  /// Takes steps 5 to 8 for the parts that change something.
  static Result<void> execute(const std::vector<Part*>& parts);
  /// Takes steps 1 to 4. May be repeated after a failure.
  static Result<void> prepare(Part& part);
  /// Makes the copies of a compaction, in step 3.
  static Result<void> copy_before(const Part& part, const EditLayout& layout);
  /// Takes step 1.
  static Result<CommitPlan> plan(Part& part);
  /// Takes step 5; through a lane journal, also step 6.
  /// @param group_record  the name of the group record that the commit waits for; empty: publish() is the
  ///                      commit point.
  static Result<void> seal(Part& part, std::string group_record);
  /// Takes step 6.
  static Result<void> publish(Part& part);
  /// Undoes step 6 after `why`, before the group record has committed the part.
  static void withdraw(Part& part, const Error& why);
  /// Takes steps 7 and 8. From here on nothing is undone. Operations that can't be finished stay in the
  /// journal.
  /// @param others_failure  the failure of another archive. The part then stays in its journal. Null: no
  ///                        failure.
  static Result<void> apply(Part& part, const Error* others_failure);
  /// Lets other commits run, if the part lends its turn.
  static void lend(Part& part, const std::function<void()>& work = {});
  /// Lets other commits run between two pieces of step 7.
  /// @param is_known  true: only this process has written to the archive since its identity was adopted.
  static Result<void> lend_while_applied(Part& part, bool& is_known);
  static Result<void> retire(Part& part);
  /// Frees the disk space of an edit's fillers. A failure leaves the space in use, and does no harm.
  static void free_fillers(Part& part);
  /// Handles a failure after the commit point: reads go through the journal, and the archive refuses
  /// writes.
  static Result<void> stop(Error why, Part& part);
  /// Makes the archive's next version. After a failure the archive must be opened again, because it keeps the
  /// version before.
  static void adopt_edit(Part& part);
  /// Ends the stages of a finished part.
  static void end_stages(Part& part);

  std::vector<Part> parts_;
};

}  // namespace stfs
