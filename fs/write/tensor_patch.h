// New bytes for a tensor of the model. A journal beside the archive has them, staged for the tensor's place.
// A patch is a separate transaction, or a part of the group of a transaction's directory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/commit/staging.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "fs/base/user_counts.h"
#include "fs/tree/snapshot.h"
#include "fs/write/committers.h"
#include "fs/write/content_lock.h"
#include "fs/write/pending_bytes.h"

namespace stfs {

/// The owner serializes the calls.
class TensorPatch final : public PendingBytes {
 public:
  /// @param snapshots  must outlive the patch.
  /// @param group      the group to stage in. Null: each commit is a separate transaction.
  TensorPatch(const Snapshots& snapshots, TensorId tensor, std::shared_ptr<TransactionGroup> group = nullptr);

  TensorPatch* patch() override { return this; }
  [[nodiscard]] std::string label() const override;
  // These act as the functions of Staging. The first write begins a stage, so an open without a write costs
  // nothing.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  Result<void> read(std::span<std::byte> to, std::uint64_t offset,
                    const Staging::ReadBase& read_base) const override;
  [[nodiscard]] std::uint64_t size_bytes() const override {
    return staged_ != nullptr ? staged_->size_bytes() : tensor_bytes_;
  }
  /// Bytes after the tensor's end are not bytes of the tensor.
  [[nodiscard]] std::uint64_t mapped_bytes() const override { return tensor_bytes_; }
  [[nodiscard]] bool is_dirty() const override { return staged_ != nullptr && staged_->is_dirty(); }
  [[nodiscard]] Result<void> check() const override;
  void note_committed() override { drop(); }
  /// Also ends a stage that a commit has ended in its group.
  void drop() override;

  /// Returns the stage. Begins a stage if none exists.
  Result<Staging*> stage();
  /// The stage, or null while nothing is pending.
  [[nodiscard]] Staging* staged() const { return staged_; }
  /// True if the stage is of a tensor of the base of a delta (TransactionGroup::stage()).
  [[nodiscard]] bool is_copy() const { return is_copy_; }
  /// True if an edit has given the tensor another place since its bytes were staged.
  [[nodiscard]] bool is_elsewhere() const {
    return staged_ != nullptr && staged_->target() != snapshots_->model->file_range(tensor_);
  }

  // A commit of a patch outside a transaction's directory calls complete(), then commit() once or more.
  // Between the first and the last call readers may enter (admitted_readers.h), so they wait neither for the
  // disk nor for another process's lock. After success, call note_committed(). After a failure everything is
  // still pending, unless has_ended().
  /// Completes the stage, which stays unchanged until the end of the commit. @return the part of the stage's
  /// shard that the commit changes.
  [[nodiscard]] Result<Committers::Patch> complete() const;
  [[nodiscard]] std::uint32_t shard() const { return staged_place_.shard; }
  /// Makes one attempt, with the shard's turn.
  /// @param lock  the lock of the file: the readers leave before the stage ends.
  Result<void> commit(ContentLock& lock, const TransactionGroup::OptionsOf& options_of,
                      const TransactionGroup::LockOf& lock_of);
  /// True if a commit has ended the stage. After a failed commit: it failed past the commit point, and the
  /// bytes are in the journal. The caller drops them.
  [[nodiscard]] bool has_ended() const { return group_->is_empty(); }
  /// Hides the stage while the group commits, because the commit ends the stage. While it is hidden, reads
  /// return the archive's bytes. unpark() restores the stage after a refused commit.
  void park();
  void unpark();

 private:
  const uid_t user_ = requesting_user();  // the user who opened it first
  const TensorId tensor_;
  const Snapshots& snapshots_;
  const std::uint64_t tensor_bytes_;
  const bool is_grouped_;
  std::shared_ptr<TransactionGroup> group_;
  Staging* staged_ = nullptr;
  // The tensor's place when the stage began. An edit may move the tensor from a base to a delta.
  TensorPlace staged_place_;
  bool is_copy_ = false;
  Staging* parked_ = nullptr;
};

}  // namespace stfs
