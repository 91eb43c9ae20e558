// The pending content of the descriptors that write a file (open_file.h).
//
// States of pending content:
//
//   clean -> dirty            write, resize
//   dirty -> clean            close or fsync: committed
//   clean or dirty -> failed  a write was refused, or the writer was killed: the bytes are dropped, and every
//                             later call fails with the reason
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/error.h"
#include "core/commit/transaction.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "fs/base/user_counts.h"
#include "fs/base/versioned.h"
#include "fs/tree/inode_table.h"
#include "fs/write/committers.h"
#include "fs/write/content_lock.h"
#include "fs/write/new_tensor.h"
#include "fs/write/writers.h"

namespace stfs {

class PendingFile {
 public:
  /// @param model   must outlive the content.
  /// @param group   the group to stage in. Null: each commit is a separate transaction.
  PendingFile(const Versioned<Model>& model, TensorId tensor,
              std::shared_ptr<TransactionGroup> group = nullptr)
      : tensor_(tensor),
        model_(model),
        tensor_bytes_(model->tensor(tensor).data.size_bytes),
        shown_size_bytes_(tensor_bytes_),
        is_grouped_(group != nullptr),
        group_(std::move(group)) {}

  /// Makes the content of a tensor that the model does not have.
  PendingFile(const Versioned<Model>& model, TensorId tensor, std::unique_ptr<PendingBytes> made)
      : tensor_(tensor),
        model_(model),
        tensor_bytes_(0),
        shown_size_bytes_(0),
        is_grouped_(false),
        owned_(std::move(made)),
        made_(owned_.get()) {}

  [[nodiscard]] TensorId tensor() const { return tensor_; }
  /// The new content; null for the content of a tensor of the model.
  [[nodiscard]] PendingBytes* made() const { return made_; }
  /// The tensor that is being made; null if no tensor is being made.
  [[nodiscard]] NewTensor* new_tensor() const {
    PendingBytes* const made = made_;
    return made == nullptr ? nullptr : made->new_tensor();
  }
  /// Makes this the content of a tensor that gets another size, dtype or shape. Call only while no byte is
  /// staged.
  void remake(std::unique_ptr<PendingBytes> made);
  /// True if a new file was deleted before it became a tensor. Then no bytes are committed.
  std::atomic<bool> is_unlinked = false;
  /// The process that opened the only descriptor has closed it after it was written. Guarded by the mutex.
  bool is_closed = false;
  /// The number of descriptors that share this content; guarded by the mutex of OpenFiles.
  std::atomic<unsigned> descriptors = 0;

  /// Guards the members below. Taken before a shard's turn and the tensor's lock (mounted_model.h).
  ContentLock mutex;
  std::optional<Error> failure;
  std::atomic<bool> has_failed = false;  // true if failure is set; may be read without the mutex
  Writers writers;
  /// The last close or sync of exactly these bytes failed, and its caller knows that they are lost.
  bool was_refused = false;

  /// True if utimensat(2) has set mtime after the last write: the commit keeps this time. The mutex of
  /// OpenFiles guards mtime.
  std::atomic<bool> keeps_mtime = false;
  struct timespec mtime {};

  // These act as the functions of Staging. The first write begins a stage, so an open without a write costs
  // nothing.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(std::uint64_t size_bytes);
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const Staging::ReadBase& read_base);

  /// Returns the stage. Begins a stage if none exists. Not for a new tensor.
  Result<Staging*> stage();
  /// True if the stage is of a tensor of the base of a delta (TransactionGroup::stage()).
  [[nodiscard]] bool is_copy() const { return is_copy_; }
  /// True if bytes are staged or being committed. Needs no mutex.
  [[nodiscard]] bool has_stage() const { return has_stage_; }
  /// The stage, or null while nothing is pending.
  [[nodiscard]] Staging* staged() const { return staged_; }
  [[nodiscard]] std::uint64_t size_bytes() const {
    return made() ? made()->size_bytes() : staged_ ? staged_->size_bytes() : tensor_bytes_;
  }
  /// The size at the last call of show_size(). Needs no mutex.
  [[nodiscard]] std::uint64_t shown_size_bytes() const { return shown_size_bytes_; }
  void show_size() { shown_size_bytes_ = size_bytes(); }
  [[nodiscard]] bool is_dirty() const {
    return made() ? made()->is_dirty() && !is_unlinked : staged_ != nullptr && staged_->is_dirty();
  }
  [[nodiscard]] bool is_whole() const {
    return made() ? made()->check().has_value() : staged_ == nullptr || staged_->is_whole();
  }

  // A commit of content outside a transaction's directory calls complete(), then commit() once or more, then
  // end_commit(). Between the first and the last call readers may enter (admitted_readers.h), so they wait
  // neither for the disk nor for another process's lock.
  /// Completes the stage, which stays unchanged until end_commit(). @return the part of the stage's shard
  /// that the commit changes.
  Result<Committers::Patch> complete();
  [[nodiscard]] std::uint32_t shard() const { return staged_place_.shard; }
  /// Makes one attempt, with the shard's turn. Makes the readers leave before it ends the stage.
  Result<void> commit(const TransactionGroup::OptionsOf& options_of, const TransactionGroup::LockOf& lock_of);
  /// After success nothing is pending. After a failure everything is still pending. The exception is a
  /// failure past the commit point: then the bytes are in the journal, and the content ends as in end().
  void end_commit(const Result<void>& done);
  /// Hides the stage while the group commits, because the commit ends the stage. While it is hidden, reads
  /// return the archive's bytes. unpark() restores the stage after a refused commit.
  void park();
  void unpark();
  /// Drops the staged bytes: the content is the archive's content again.
  void forget();
  /// Makes every later call fail with this error. The stage stays until fail(), because other threads may be
  /// using it.
  void note_failure(Error why);
  /// Drops the staged bytes, and makes every later call fail with this error.
  void fail(Error why);

  /// Acts as fail(), for a commit that has already ended the stage.
  void end(Error why);
  /// Clears the failure, so that the writer may begin again.
  void retry();

  /// Call before new bytes are staged.
  void note_write(Caller caller);
  /// Call when the new content was committed, or staged in a transaction.
  void note_committed();
  /// Accepts the pending bytes: the end of a writer does not drop them any more.
  void accept() { writers.clear(); }

 private:
  const uid_t user_ = requesting_user();  // the user who opened it first
  const TensorId tensor_;
  const Versioned<Model>& model_;
  const std::uint64_t tensor_bytes_;
  std::atomic<std::uint64_t> shown_size_bytes_;
  const bool is_grouped_;
  std::unique_ptr<PendingBytes> owned_;
  std::atomic<PendingBytes*> made_ = nullptr;  // points to owned_; may be read without the mutex
  std::shared_ptr<TransactionGroup> group_;
  Staging* staged_ = nullptr;
  // The tensor's place when the stage began. An edit may move the tensor from a base to a delta.
  TensorPlace staged_place_;
  bool is_copy_ = false;
  std::atomic<bool> has_stage_ = false;
  Staging* parked_ = nullptr;
};

}  // namespace stfs
