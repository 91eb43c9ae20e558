// Transactions that commit together: one for each shard with staged bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/commit/transaction.h"
#include "core/model/model.h"

namespace stfs {

/// Not synchronized: callers that share it hold the mutex.
class TransactionGroup {
 public:
  /// Asked before a file of staged bytes is made: it stays open while the group keeps the share. An error
  /// refuses the file.
  using TakeDescriptor = std::function<Result<std::shared_ptr<const void>>()>;
  /// The model's archives must outlive it.
  explicit TransactionGroup(const Model& model, TakeDescriptor take_descriptor = nullptr);

  Mutex mutex;  // taken after a content's

  /// Calls Transaction::stage() of the tensor's shard. A tensor of the base of a delta gets a stage that
  /// can't be committed in place: its bytes lie beside the delta, for a ModelEdit::put().
  Result<Staging*> stage(TensorPlace place);
  void drop(TensorPlace place);

  /// Returns the options for a commit to a shard, or why nothing can be committed there.
  using OptionsOf = std::function<Result<CommitOptions>(std::uint32_t shard)>;
  /// Calls Transaction::begin_patches() for the shards of these tensors, in the order in which commits lock
  /// archives. EROFS: a tensor belongs to the base of a delta.
  Result<void> begin_patches(const std::vector<TensorPlace>& places, const OptionsOf& options_of);
  /// The transaction of a shard with tensors of begin_patches(). Its patch() and keep_patches() need no
  /// mutex.
  Transaction& of_shard(std::uint32_t shard) { return transactions_.at(shard); }
  /// Transaction::has_patches() of any shard.
  [[nodiscard]] bool has_patches() const;
  /// Transaction::replace_sync_state(), of the shard with patches that the commit applies last: the state
  /// then changes after all tensors.
  Result<void> replace_sync_state(std::string_view text);

  /// Whether Transaction::is_empty() holds for every shard, and there are no copies.
  [[nodiscard]] bool is_empty() const;
  /// Whether a tensor of the base of a delta is staged: commit() then fails with EROFS.
  [[nodiscard]] bool has_copies() const { return !copies_.empty(); }

  using LockOf = std::function<ReaderWriterLock&(TensorPlace place)>;
  /// Commits all shards with staged bytes in one CommitProtocol: all of them change, or none.
  Result<void> commit(const OptionsOf& options_of, const LockOf& lock_of);

 private:
  Result<Staging*> stage_copy(TensorPlace place);
  /// Takes a descriptor for the shard's file, if it has none.
  Result<void> take_share(std::uint32_t shard);
  Result<void> begin_patches_unguarded(const std::vector<TensorPlace>& places, const OptionsOf& options_of);
  Result<void> commit_unguarded(const OptionsOf& options_of, const LockOf& lock_of);
  [[nodiscard]] tl::unexpected<Error> refuse_base() const;

  const TakeDescriptor take_descriptor_;
  std::map<std::uint32_t, std::shared_ptr<const void>> shares_;  // by shard; the base of a delta counts once
  std::vector<Archive*> archives_;                               // by shard; null for one that can't be used
  std::map<std::uint32_t, Transaction> transactions_;            // by shard
  // Of a model with a delta:
  std::vector<std::shared_ptr<const ArchiveVersion>> base_;  // by shard
  std::unique_ptr<Journal> journal_;                         // has the bytes of copies_
  std::map<TensorPlace, std::unique_ptr<Staging>> copies_;
};

/// Commits all that are dirty, by shard, in one CommitProtocol: all of them change, or none.
Result<void> commit_together(std::map<std::uint32_t, Transaction>& transactions,
                             const TransactionGroup::OptionsOf& options_of,
                             const TransactionGroup::LockOf& lock_of);

}  // namespace stfs
