// Staged tensors become the archive's content: all of them, or none, whatever happens meanwhile.
//
// commit() goes through these steps (DURABILITY.md); what fails before step 6 leaves the archive
// untouched and the stages as they were, so that the caller may try again or give up:
//   1. check that every stage has exactly its tensor's size
//   2. lock: shared on the header byte, exclusive on the blocks, in ascending order
//   3. check that the path still names the archive that was opened, with the same header
//   4. recover what dead owners have left
//   5. fill the first and last blocks, sync the archive where others may have written into it and recovery
//      would ask what was there, hash the new blocks, share or hash the old ones, seal the journal (one
//      fsync)
//   6. publish the journal (fsync of the directory): THE COMMIT POINT; with a standing journal
//      (standing_journal.h) the fsync of step 5 is
//   7. apply: clone or write every block, while readers read the journal; fdatasync the archive
//   8. retire the journal, unlock
// After a failure in step 7 the journal stays and is the truth: the archive takes no more writes, and
// reads of those ranges come from the journal until it can be applied. The error's message says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/reader_writer_lock.h"
#include "core/commit/staging.h"
#include "core/journal/file_lock.h"
#include "core/journal/journal.h"
#include "core/journal/journal_apply.h"

namespace stfs {

struct CommitOptions {
  Durability durability = Durability::Power;
  bool uses_locks = true;
  /// How long another process's lock is waited for before EBUSY.
  std::chrono::milliseconds lock_patience{10'000};
  /// How long the caller has tried already, for the message of EBUSY; nothing: the caller tries again.
  std::optional<std::chrono::milliseconds> has_waited{0};
  /// Makes void what the other standing journals of this process hold (StandingJournal::settle()). Called
  /// before the commit waits for anybody, who may be waiting for one of those, and before one that takes
  /// long.
  std::function<void()> settle_others;
  /// Called under the locks when somebody else has changed the archive's bytes since the last look:
  /// whoever caches any must drop it. A failure is a veto: it ends the commit, with nothing changed. The
  /// archive's identity is adopted in any case.
  std::function<Result<void>()> on_foreign_change;
  /// Called with no lock held before the stages and the journal end: nobody may read the stages afterwards.
  std::function<void()> before_stages_end;
  /// Called with (bytes done, bytes in all) now and then during steps 5 and 7.
  std::function<void(std::uint64_t, std::uint64_t)> on_progress;
};

/// Keeps every touched tensor's readers out while the place changes that they read from; a lock that several
/// share is taken once, and all in one order. Nothing waits for the disk while the readers are out.
class ReadersOut {
 public:
  void add(ReaderWriterLock& lock) { locks_.push_back(&lock); }
  /// After the last add(). What comes then needs no memory.
  void make_ready();
  void take();
  void release() { held_.clear(); }
  /// Takes the locks, calls `change`, releases them.
  template <class Change>
  void during(const Change& change) {
    take();
    change();
    release();
  }

 private:
  std::vector<ReaderWriterLock*> locks_;
  std::vector<std::unique_lock<ReaderWriterLock>> held_;
};

/// Used by one thread at a time; commits of one Archive object must not overlap in time.
class Transaction {
 public:
  /// Touches nothing yet: the journal begins with the first stage.
  explicit Transaction(Archive& archive) : archive_(archive) {}

  /// The pending content of a tensor: a new one at first, later the same.
  Result<Staging*> stage(std::uint32_t tensor);
  /// Forgets the pending content of a tensor.
  void drop(std::uint32_t tensor);
  [[nodiscard]] bool is_dirty() const;
  /// Nothing is staged: never was, or a commit has ended the stages, with success or behind the commit point.
  [[nodiscard]] bool is_empty() const { return stages_.empty(); }

  /// The lock that readers of a tensor hold: taken exclusively at both ends of step 7. In between, readers
  /// get the new bytes out of the journal.
  using LockOf = std::function<ReaderWriterLock&(std::uint32_t tensor)>;

  /// On success the bytes are as durable as asked for and the stages are gone: begin a new Transaction for
  /// the next change. After a failure behind the commit point they are gone as well, see is_empty().
  /// WrongSize (EINVAL) names what came and what was due. ArchiveChanged (ESTALE): another file lies at the
  /// path, or the header is another one. EMLINK: the archive has several hard links. Busy (EBUSY): somebody
  /// else's lock.
  Result<void> commit(const CommitOptions& options, const LockOf& lock_of);

 private:
  friend class GroupCommit;  // takes the steps of several side by side

  /// What a commit holds between its steps.
  struct Prepared {
    ArchiveLocks locks;
    ReadersOut readers;
    std::vector<JournalRange> ranges;  // none where nothing was staged
  };
  Result<Staging*> begin_stage(std::uint32_t tensor);
  /// Steps 1 to 4. After a failure the same may be tried again.
  Result<Prepared> prepare(const CommitOptions& options, const LockOf& lock_of);
  /// Step 5; through a standing journal step 6 as well.
  /// @param coordinator  the name of what the commit waits for; empty: publish() is the commit point.
  Result<void> seal(const Prepared& prepared, const CommitOptions& options, std::string coordinator = {});
  /// Step 6.
  Result<void> publish(const Prepared& prepared, const CommitOptions& options);
  /// Steps 7 and 8. Nothing is undone any more; what can't be finished stays in the journal.
  Result<void> finish(Prepared prepared, const CommitOptions& options);
  Result<void> apply(Prepared& prepared, const CommitOptions& options);
  [[nodiscard]] Result<void> check_sizes() const;
  [[nodiscard]] Result<void> check_archive(const CommitOptions& options);
  /// Old blocks that lie together by the many go into the journal, where files can share blocks.
  [[nodiscard]] Result<void> share_old(std::vector<JournalRange>& ranges) const;
  /// The new blocks of one range, and the old ones where they are not in the journal.
  [[nodiscard]] Result<void> hash(JournalRange& range, const OnBytes& on_bytes) const;
  /// What the stages do not know of the new blocks is read and hashed.
  [[nodiscard]] Result<void> hash_new(JournalRange& range, const OnBytes& on_bytes) const;
  Result<ArchiveLocks> lock(const std::vector<ByteRange>& ranges, const CommitOptions& options);
  /// After a failure behind the commit point: reads go through the journal, writes end.
  Result<void> stop(Error why, Prepared& prepared, const CommitOptions& options);

  Archive& archive_;
  std::unique_ptr<Journal> journal_;
  std::map<std::uint32_t, std::unique_ptr<Staging>> stages_;  // by tensor, thus by offset
  Error stopped_;                                             // made ready for stop()
};

}  // namespace stfs
