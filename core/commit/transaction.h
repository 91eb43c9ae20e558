// Makes staged tensors the archive's content: all of them, or none, even after a crash.
//
// commit() takes these steps (DURABILITY.md). A failure before step 6 leaves the archive untouched and the
// stages as they were, so that the caller may try again or give up:
//  1. check that every stage has exactly its tensor's size
//  2. lock: shared on the header byte, exclusive on the blocks, in ascending order
//  3. check that the path still names the archive that was opened, with the same header
//  4. recover the journals that dead owners have left
//  5. fill the first and last blocks; sync the archive if others may have written into it and recovery would
//     need the old content; hash the new blocks; share or hash the old ones; seal the journal (one fsync)
//  6. publish the journal (fsync of the directory): THE COMMIT POINT. With a standing journal
//     (standing_journal.h), the fsync of step 5 is the commit point
//  7. apply: clone or write every block, while readers read the journal; fdatasync the archive
//  8. retire the journal, unlock
// After a failure in step 7 the journal stays and holds the valid bytes: the archive takes no more writes,
// and reads of these ranges come from the journal until it can be applied. The error's message says so.
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
  /// How long to wait for another process's lock before EBUSY.
  std::chrono::milliseconds lock_patience{10'000};
  /// How long the caller has tried already, for the message of EBUSY; nothing: the caller will retry.
  std::optional<std::chrono::milliseconds> has_waited{0};
  /// Settles the other standing journals of this process (StandingJournal::settle()). Called before the
  /// commit waits for another process, which may itself wait for one of these journals, and before a commit
  /// that takes long.
  std::function<void()> settle_others;
  /// Called under the locks if another process has changed the archive's bytes since the last check: the
  /// callee must drop all cached bytes. An error is a veto: the commit ends with nothing changed. The
  /// archive's new identity is adopted in either case.
  std::function<Result<void>()> on_foreign_change;
  /// Called with no lock held, before the stages and the journal are destroyed. Nobody may read the stages
  /// after it returns.
  std::function<void()> before_stages_end;
  /// Called with (bytes done, bytes in all) from time to time during steps 5 and 7.
  std::function<void(std::uint64_t, std::uint64_t)> on_progress;
};

/// Excludes the readers of every touched tensor while the place changes that they read from. A lock that
/// several tensors share is taken once. All locks are taken in one order. Nothing waits for the disk while
/// readers are excluded.
class ReadersOut {
 public:
  void add(ReaderWriterLock& lock) { locks_.push_back(&lock); }
  /// Call this after the last add(). The calls after it need no memory.
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

/// For one thread at a time. Commits of one Archive object must not overlap in time.
class Transaction {
 public:
  /// Touches no file: the first stage() makes the journal.
  explicit Transaction(Archive& archive) : archive_(archive) {}

  /// Returns the pending content of a tensor. The first call for a tensor makes it.
  Result<Staging*> stage(std::uint32_t tensor);
  /// Drops the pending content of a tensor.
  void drop(std::uint32_t tensor);
  [[nodiscard]] bool is_dirty() const;
  /// Whether nothing is staged: there never was a stage, or a commit has ended the stages, by success or by a
  /// failure after the commit point.
  [[nodiscard]] bool is_empty() const { return stages_.empty(); }

  /// Returns the lock that readers of a tensor hold. The commit takes it exclusively at both ends of step 7.
  /// In between, readers get the new bytes from the journal.
  using LockOf = std::function<ReaderWriterLock&(std::uint32_t tensor)>;

  /// On success the bytes are as durable as asked for and the stages are gone: make a new Transaction for the
  /// next change. After a failure behind the commit point the stages are gone too, see is_empty(). WrongSize
  /// (EINVAL) names the staged size and the required one. ArchiveChanged (ESTALE): the path names another
  /// file, or the header has changed. EMLINK: the archive has several hard links. Busy (EBUSY): another
  /// process holds a lock.
  Result<void> commit(const CommitOptions& options, const LockOf& lock_of);

 private:
  friend class GroupCommit;  // runs the steps of several transactions side by side

  /// What a commit keeps between its steps.
  struct Prepared {
    ArchiveLocks locks;
    ReadersOut readers;
    std::vector<JournalRange> ranges;  // empty if nothing was staged
  };
  Result<Staging*> begin_stage(std::uint32_t tensor);
  /// Steps 1 to 4. May be repeated after a failure.
  Result<Prepared> prepare(const CommitOptions& options, const LockOf& lock_of);
  /// Step 5; through a standing journal, step 6 as well.
  /// @param coordinator  the name of the coordinator that the commit waits for; empty: publish() is the
  ///                     commit point.
  Result<void> seal(const Prepared& prepared, const CommitOptions& options, std::string coordinator = {});
  /// Step 6.
  Result<void> publish(const Prepared& prepared, const CommitOptions& options);
  /// Steps 7 and 8. Nothing is undone from here on. What can't be finished stays in the journal.
  Result<void> finish(Prepared prepared, const CommitOptions& options);
  Result<void> apply(Prepared& prepared, const CommitOptions& options);
  [[nodiscard]] Result<void> check_sizes() const;
  [[nodiscard]] Result<void> check_archive(const CommitOptions& options);
  /// Shares large runs of old blocks with the journal, if files can share blocks.
  [[nodiscard]] Result<void> share_old(std::vector<JournalRange>& ranges) const;
  /// Hashes the new blocks of one range, and the old blocks unless the journal has them.
  [[nodiscard]] Result<void> hash(JournalRange& range, const OnBytes& on_bytes) const;
  /// Takes the new blocks' hashes from the stages where they know them; reads and hashes the others.
  [[nodiscard]] Result<void> hash_new(JournalRange& range, const OnBytes& on_bytes) const;
  Result<ArchiveLocks> lock(const std::vector<ByteRange>& ranges, const CommitOptions& options);
  /// Handles a failure after the commit point: reads go through the journal, and writes end.
  Result<void> stop(Error why, Prepared& prepared, const CommitOptions& options);

  Archive& archive_;
  std::unique_ptr<Journal> journal_;
  std::map<std::uint32_t, std::unique_ptr<Staging>> stages_;  // by tensor, and so by offset
  Error stopped_;                                             // prepared in advance, for stop()
};

}  // namespace stfs
