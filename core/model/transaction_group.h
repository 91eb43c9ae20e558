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
  /// Is called before a file of staged bytes is made. The file stays open while the group keeps the returned
  /// share. An error refuses the file.
  using TakeDescriptor = std::function<Result<std::shared_ptr<const void>>()>;
  /// The model's archives must outlive it.
  explicit TransactionGroup(const Model& model, TakeDescriptor take_descriptor = nullptr);

  Mutex mutex;  // taken after the mutex of a content

  /// Calls Transaction::stage() of the tensor's shard. A tensor of the base of a delta gets a stage that
  /// can't be committed in place. Its bytes are in a file beside the delta, for a ModelEdit::put().
  Result<Staging*> stage(TensorPlace place);
  void drop(TensorPlace place);

  /// Returns the options for a commit to a shard, or the reason why nothing can be committed there.
  using OptionsOf = std::function<Result<CommitOptions>(std::uint32_t shard)>;
  /// Calls Transaction::begin_patches() for the shards of these tensors, in the order in which commits lock
  /// archives. EROFS: a tensor is in the base of a delta.
  Result<void> begin_patches(const std::vector<TensorPlace>& places, const OptionsOf& options_of);
  /// Returns the transaction of a shard with tensors of begin_patches(). Its patch() and keep_patches() need
  /// no mutex.
  Transaction& of_shard(std::uint32_t shard) { return transactions_.at(shard); }
  /// Returns true if Transaction::has_patches() is true for any shard.
  [[nodiscard]] bool has_patches() const;
  /// Calls Transaction::replace_sync_state() for the shard with patches that the commit applies last. The
  /// state then changes after all tensors.
  Result<void> replace_sync_state(std::string_view text);

  /// Returns true if Transaction::is_empty() is true for every shard, and there are no copies.
  [[nodiscard]] bool is_empty() const;
  /// Returns true if a tensor of the base of a delta is staged: commit() then fails with EROFS.
  [[nodiscard]] bool has_copies() const { return !copies_.empty(); }

  using LockOf = std::function<ReaderWriterLock&(TensorPlace place)>;
  /// Commits all shards with staged bytes in one CommitProtocol: all of them change, or none.
  Result<void> commit(const OptionsOf& options_of, const LockOf& lock_of);

 private:
  Result<Staging*> stage_copy(TensorPlace place);
  /// Takes a descriptor for the shard's file, if the shard has none.
  Result<void> take_share(std::uint32_t shard);
  Result<void> begin_patches_unguarded(const std::vector<TensorPlace>& places, const OptionsOf& options_of);
  Result<void> commit_unguarded(const OptionsOf& options_of, const LockOf& lock_of);
  [[nodiscard]] tl::unexpected<Error> refuse_base() const;

  const TakeDescriptor take_descriptor_;
  std::map<std::uint32_t, std::shared_ptr<const void>>
      shares_;                                         // by shard; one share for the whole base of a delta
  std::vector<Archive*> archives_;                     // by shard; null for a shard that can't be used
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
  // Of a model with a delta:
  std::vector<std::shared_ptr<const ArchiveVersion>> base_;  // by shard
  std::unique_ptr<Journal> journal_;                         // has the bytes of copies_
  std::map<TensorPlace, std::unique_ptr<Staging>> copies_;
};

/// Commits all dirty transactions, by shard, in one CommitProtocol: all of them change, or none.
Result<void> commit_together(std::map<std::uint32_t, Transaction>& transactions,
                             const TransactionGroup::OptionsOf& options_of,
                             const TransactionGroup::LockOf& lock_of);

}  // namespace stfs
