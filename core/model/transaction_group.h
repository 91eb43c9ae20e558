// Transactions that commit together: one for each shard with staged bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "core/commit/transaction.h"
#include "core/model/model.h"

namespace stfs {

/// Not synchronized: callers that share it hold the mutex.
class TransactionGroup {
 public:
  /// The model must outlive it.
  explicit TransactionGroup(const Model& model) : model_(model) {}

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
  const Model& model_;
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
};

}  // namespace stfs
