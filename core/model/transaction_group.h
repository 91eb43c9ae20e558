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
  /// Runs one attempt of all commits of the model at a time. Repeats an attempt that fails with Busy for as
  /// long as its patience lasts, and lets other commits run between two attempts.
  using InTurn = std::function<Result<void>(const std::function<Result<void>()>& attempt)>;
  /// Commits all shards with staged bytes as one GroupCommit: all of them change, or none.
  Result<void> commit(const OptionsOf& options_of, const LockOf& lock_of);

 private:
  const Model& model_;
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
};

}  // namespace stfs
