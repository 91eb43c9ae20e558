// Collects staged tensors of one archive and makes them its content: all of them or none, even after a crash.
//
// A Transaction owns the stages and their journal. CommitProtocol takes the steps of a commit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/mutex.h"
#include "core/base/reader_writer_lock.h"
#include "core/commit/archive_edit.h"
#include "core/commit/commit_options.h"
#include "core/commit/staging.h"
#include "core/journal/file_lock.h"
#include "core/journal/journal.h"

namespace stfs {

/// Used by one thread at a time. Commits of one Archive object must not overlap in time, except as
/// commit_protocol.h describes.
class Transaction {
 public:
  /// Touches no file: the first stage() makes the journal.
  explicit Transaction(Archive& archive) : archive_(archive), version_(archive.version()) {}

  /// Returns the pending content of a tensor. The first call for a tensor makes the content.
  /// @param tensor  must be in the archive's version at construction, which the transaction pins.
  Result<Staging*> stage(TensorId tensor);
  /// Makes this transaction an edit. This is the first call, and is made once; stage() is not for edits.
  /// @param uses_locks  the same as in the commit's CommitOptions. Without locks no other process may have
  ///                    the archive open.
  /// @return the errors of lay_out() and of stage().
  Result<void> edit(ArchiveEdit edit, bool uses_locks = true);
  /// Does the same, with the layout that a compaction has planned (compaction.h).
  Result<void> edit(ArchiveEdit edit, EditLayout layout);
  /// Makes the edit also replace the index of its model. EOPNOTSUPP: the index is in another directory than
  /// the archive.
  /// @param before  the index that `text` was made from. If the index is another one at the commit, the
  ///                commit fails with ESTALE.
  Result<void> replace_index(const std::filesystem::path& path, std::string_view before,
                             std::string_view text);
  /// Returns the pending content of a tensor whose bytes are new (EditedTensor::from), empty at first. Null
  /// for other tensors.
  /// @param tensor  position in ArchiveEdit::tensors.
  [[nodiscard]] Staging* stage_new(std::uint32_t tensor) const;
  /// The plan of the edit; null if this is no edit.
  [[nodiscard]] std::shared_ptr<const EditLayout> layout() const { return edit_ ? edit_->layout : nullptr; }

  /// Makes this transaction one of patches: it stores only the bytes that differ. This is the first call, and
  /// is made once; stage() and edit() are not for patches. It takes the commit's locks on all tensors of the
  /// archive at once, and keeps them: no other process changes a tensor between the read of the old bytes and
  /// the end of the commit. In this time only the patches change the archive, and a sync state may rely on
  /// that.
  /// @param tensors  each at most once, in the archive's version at construction.
  /// @return the errors of commit() that concern locks and the archive.
  Result<void> begin_patches(std::span<const TensorId> tensors, const CommitOptions& options);
  /// Patches in the journal that keep_patches() has not taken yet. Used by one thread.
  struct Patches {
    std::vector<JournalRange> ranges;
    std::vector<std::byte> scratch;
  };
  /// Stages the bytes in which `after` differs from `before`, if any. Any thread may call, with its own
  /// `patches`.
  /// @param offset  in the archive; the range is inside one of the tensors of begin_patches(). Ranges that do
  ///                not end within a 4096-byte block cost least.
  /// @param before  the archive's content there, as read after begin_patches().
  Result<void> patch(std::uint64_t offset, std::span<const std::byte> before,
                     std::span<const std::byte> after, Patches& patches);
  /// Makes patches, of disjoint ranges, part of the commit. Patches that are never kept only take space in
  /// the journal. Any thread may call.
  Result<void> keep_patches(Patches& patches);
  /// Returns true if keep_patches() was called with patches.
  [[nodiscard]] bool has_patches() const;
  /// Makes the commit of patches also replace the state of the model's weight sync (kSyncStateName). The
  /// state's directory must exist at the commit, and must be writable. Does nothing if there is no patch.
  Result<void> replace_sync_state(std::string_view text);

  /// Drops the pending content of a tensor.
  void drop(TensorId tensor);
  [[nodiscard]] bool is_dirty() const;
  /// Returns true if nothing is staged: there never was a stage, or a commit has ended the stages, by success
  /// or by a failure after the commit point.
  [[nodiscard]] bool is_empty() const { return stages_.empty() && !edit_ && !patches_; }

  /// Returns the lock that readers of a tensor hold. The commit takes it exclusively when it begins and when
  /// it ends applying. In between, readers get the new bytes from the journal.
  using LockOf = std::function<ReaderWriterLock&(TensorId tensor)>;

  /// On success the bytes are as durable as asked for, and the stages are dropped: the caller makes a new
  /// Transaction for the next change. After a failure behind the commit point the stages are dropped also,
  /// see is_empty(). Patches are dropped after every failure, because their locks are released. WrongSize
  /// (EINVAL) names the staged size and the required size. ArchiveChanged (ESTALE): the path names another
  /// file, or the header has changed. EMLINK: the archive has several hard links. Busy (EBUSY): another
  /// process holds a lock.
  Result<void> commit(const CommitOptions& options, const LockOf& lock_of);

 private:
  friend class CommitProtocol;  // commits the stages, then ends them

  /// The state of an edit until its commit.
  struct PendingEdit {
    ArchiveEdit edit;
    std::shared_ptr<const EditLayout> layout;
    std::unique_ptr<Staging> header;
    std::vector<std::unique_ptr<Staging>> placed;  // like EditLayout::placed
  };
  /// The state of patches until their commit.
  struct PendingPatches {
    std::vector<TensorId> tensors;
    ArchiveLocks locks;
    Mutex mutex;                       // guards the ranges while threads call patch()
    std::vector<JournalRange> ranges;  // in no order
  };
  Result<Staging*> begin_stage(TensorId tensor);
  Result<void> begin_edit(ArchiveEdit edit, bool uses_locks);
  Result<void> begin_edit(ArchiveEdit edit, EditLayout layout);
  Result<void> replace_file(std::string name, std::uint64_t old_hash, std::string_view text);
  /// Ends the stages, and the edit.
  void clear();
  [[nodiscard]] Result<void> check_sizes() const;
  /// Returns ESTALE (ArchiveChanged) if, after the staging, an edit of this process has deleted or moved a
  /// staged tensor, or has changed the version that this edit is based on.
  [[nodiscard]] Result<void> check_places() const;

  Archive& archive_;
  std::shared_ptr<const ArchiveVersion> version_;
  std::unique_ptr<Journal> journal_;
  Stages stages_;
  std::unique_ptr<PendingEdit> edit_;
  std::unique_ptr<PendingPatches> patches_;
  std::optional<FileReplacement> index_;  // of an edit or of patches
};

}  // namespace stfs
