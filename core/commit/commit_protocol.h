// Executes commit plans: of one archive, or of several as one, all of them or none, even after a crash.
//
// commit() takes these steps (core/DURABILITY.md), each for all archives in order of their paths, so that two
// groups can't wait for each other. A failure before step 6 leaves the archives untouched and the stages as
// they were, so that the caller may try again or give up. Only the stages of a journal that has failed itself
// are lost (journal.h).
//  1. plan: check that every stage has exactly its tensor's size, and list what will be written
//  2. lock: shared on the header byte, exclusive on the blocks, in ascending order; recover the journals that
//     dead owners have left
//  3. check that the path still names the archive that was opened, with the same header
//  4. complete the first and last blocks
//  5. seal: sync the archive if others may have written into it and recovery would need the old content; hash
//     the new blocks; share or hash the old ones; seal the journal (one fsync). The journals of several
//     archives name a group record (group_record.h), which is sealed last
//  6. publish each journal (fsync of the directory), and the group record last: THE COMMIT POINT. With a lane
//     journal (lane_journal.h), the fsync of step 5 is the commit point
//  7. apply: clone or write every block, while readers read the journal; fdatasync the archive. The archive
//     whose journal replaces the index, or the sync state, comes last
//  8. retire each journal; then unlock all archives, and remove the group record
// A new index, or a new sync state, is made without a name in step 3, and gets its name at the end of step 7.
// An edit (archive_edit.h) differs in these: step 2 locks the header byte exclusively, and waits for every
// journal. Step 3 keeps readers out where bytes will be taken away, and reserves the space that step 7 needs.
// A compaction (compaction.h) copies bytes to fillers then, and syncs them.
// Step 4 copies what moves. Step 7 hides the header meanwhile (journal_apply.h), and replaces the index. Step
// 8 gives back the space of fillers, and the archive adopts its new structure. Reads of tensors that have
// moved go on with their old places until the caller calls Archive::end_move().
//
// After a failure in step 7 the journal stays and holds the valid bytes, as does the group record: that
// archive takes no more writes, and reads of these ranges come from the journal until it can be applied. The
// error's message says so. The other archives are finished, but not the one that replaces the index: the old
// index names all archives, so that the next opening of the model for writing finds their journals.
//
// Commits of one Archive object never overlap in time, with one exception: a large patch of one archive
// lends its turn (CommitOptions::lend_turn). Whole other commits then run inside of its steps 5 and 7. The
// large one only reads its old blocks and syncs its own journal meanwhile. Invariants:
//  1. A commit beside another one is a patch of other blocks. The old blocks that the large one has hashed
//     stay as they are, so do the blocks that it completes, and in recovery the order of the two is of no
//     importance.
//  2. The large commit keeps its locks. The other takes only those of its blocks
//     (ArchiveLocks::for_blocks()), so that its release leaves the header's byte locked. It runs no recovery:
//     recovery takes and releases locks of this process on all blocks that a journal names. It fails with
//     Busy instead.
//  3. The large commit has settled the lane journal before it lends, and uses it no more.
//  4. Whenever the turn is lent, the archive's known identity is that of the last own write: the other
//     commit notices changes by others, and only those. When the turn is back, the identity tells whether
//     others have written.
//  5. Readers get the blocks of each of the two from its own journal while it is applied.
//  6. If a commit stops all writing, the large one ends as well: in step 5 with nothing changed, in step 7 it
//     leaves its journal to recovery. A failed sync may have lost what either has written.
//  7. With durability=power few pieces of the archive wait for the disk when the turn is lent
//     (PiecesOnTheWay): the other commit syncs the archive, and waits for no more.
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
/// several tensors share is taken once. All locks are taken in one order. Nothing waits for the disk while
/// readers are excluded.
class ReadersOut {
 public:
  void add(ReaderWriterLock& lock) { locks_.push_back(&lock); }
  /// Call this after the last add(). The calls after it need no memory.
  void make_ready() {
    std::ranges::sort(locks_);
    locks_.erase(std::unique(locks_.begin(), locks_.end()), locks_.end());
    held_.reserve(locks_.size());
  }
  /// Takes the locks, calls `change`, releases them.
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

/// For one thread, and for one commit.
class CommitProtocol {
 public:
  /// Adds an archive's part. A part without stages changes nothing. All arguments must outlive the commit.
  void add(Transaction& transaction, const CommitOptions& options, const Transaction::LockOf& lock_of);

  /// Fails as Transaction::commit() does. EOPNOTSUPP (InvalidArgument): the archives lie in several
  /// directories, so that no group record could be found from all of them.
  Result<void> commit();

 private:
  /// What a commit keeps of one archive between its steps.
  struct Part {
    Transaction* transaction = nullptr;
    const CommitOptions* options = nullptr;
    const Transaction::LockOf* lock_of = nullptr;
    CommitPlan plan;
    ArchiveLocks locks;
    ReadersKeptOut readers_kept_out;
    ReservedSpace reserved;
    ReadersOut readers;
    bool lends = false;        // its turn, while it seals and applies
    bool has_company = false;  // another commit has run while it was lent
    std::optional<FileReplacement> index{};
    std::unique_ptr<File> prepared_index;
    Archive::Moves moves;        // while they are applied
    Archive::Moves moves_after;  // and from then on, until the caller ends them
    Error stopped;               // prepared in advance, for stop()

    [[nodiscard]] Archive& archive() const { return transaction->archive_; }
    [[nodiscard]] Journal& journal() const { return *transaction->journal_; }
    /// An edit that a loss of power undid in part could leave no valid header.
    [[nodiscard]] Durability durability() const;
  };
  Result<void> commit_unguarded();
  /// Steps 5 to 8 for the parts that change something.
  static Result<void> execute(const std::vector<Part*>& parts);
  /// Steps 1 to 4. May be repeated after a failure.
  static Result<void> prepare(Part& part);
  /// Of step 3: what a compaction moves.
  static Result<void> copy_before(const Part& part, const EditLayout& layout);
  /// Step 1.
  static Result<CommitPlan> plan(Part& part);
  /// Step 5; through a lane journal, step 6 as well.
  /// @param group_record  the name of the group record that the commit waits for; empty: publish() is the
  ///                      commit point.
  static Result<void> seal(Part& part, std::string group_record);
  /// Step 6.
  static Result<void> publish(Part& part);
  /// Undoes step 6 after `why`, before the group record has committed the part.
  static void withdraw(Part& part, const Error& why);
  /// Steps 7 and 8. Nothing is undone from here on. What can't be finished stays in the journal.
  /// @param others_failure  of another archive. The part then stays in its journal. Null: there was none.
  static Result<void> apply(Part& part, const Error* others_failure);
  /// Lets other commits run, if the part lends its turn.
  static void lend(Part& part, const std::function<void()>& work = {});
  /// Of step 7: lets other commits run between two pieces.
  /// @param is_known  whether nobody else has written to the archive since its identity was adopted.
  static Result<void> lend_while_applied(Part& part, bool& is_known);
  static Result<void> retire(Part& part);
  /// Gives the disk space of an edit's fillers back. A failure leaves the space in use, and harms nothing.
  static void free_fillers(Part& part);
  /// Handles a failure after the commit point: reads go through the journal, and writes end.
  static Result<void> stop(Error why, Part& part);
  /// Makes the archive's next version. After a failure the archive must be opened again: its version is the
  /// one before.
  static void adopt_edit(Part& part);
  /// Ends the stages of a part that is done.
  static void end_stages(Part& part);

  std::vector<Part> parts_;
};

}  // namespace stfs
