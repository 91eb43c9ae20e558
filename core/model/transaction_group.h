// Transactions that commit together: one for each shard with staged bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "core/commit/transaction.h"
#include "core/model/model.h"

namespace stfs {

/// Not synchronized: callers that share it hold the mutex.
class TransactionGroup {
 public:
  /// The model's archives must outlive it.
  explicit TransactionGroup(const Model& model);

  std::mutex mutex;  // guards the members below; taken after a content's

  /// Calls Transaction::stage() of the tensor's shard.
  Result<Staging*> stage(TensorPlace place);
  void drop(TensorPlace place);
  /// Whether Transaction::is_empty() holds for every shard.
  [[nodiscard]] bool is_empty() const;

  /// Returns the options for a commit to a shard, or why nothing can be committed there.
  using OptionsOf = std::function<Result<CommitOptions>(std::uint32_t shard)>;
  using LockOf = std::function<ReaderWriterLock&(TensorPlace place)>;
  /// Commits all shards with staged bytes in one CommitProtocol: all of them change, or none.
  Result<void> commit(const OptionsOf& options_of, const LockOf& lock_of);

 private:
  std::vector<Archive*> archives_;                     // by shard; null for one that can't be used
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
};

/// Commits all that are dirty, by shard, in one CommitProtocol: all of them change, or none.
Result<void> commit_together(std::map<std::uint32_t, Transaction>& transactions,
                             const TransactionGroup::OptionsOf& options_of,
                             const TransactionGroup::LockOf& lock_of);

}  // namespace stfs
