// What changes together: a transaction for each shard that something is staged of.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "core/commit/transaction.h"
#include "core/model/model.h"

namespace stfs {

/// Not synchronized: its users hold the mutex where they share it.
class TransactionGroup {
 public:
  /// The model must outlive it.
  explicit TransactionGroup(const Model& model) : model_(model) {}

  std::mutex mutex;  // guards what follows; taken after a content's

  /// Transaction::stage() of the tensor's shard.
  Result<Staging*> stage(TensorPlace place);
  void drop(TensorPlace place);
  /// Transaction::is_empty() of every shard.
  [[nodiscard]] bool is_empty() const;

  /// How to commit to a shard, or why nothing can be committed there.
  using OptionsOf = std::function<Result<CommitOptions>(std::uint32_t shard)>;
  using LockOf = std::function<ReaderWriterLock&(TensorPlace place)>;
  /// Runs one attempt at a time of all commits of the model. Repeats an attempt that fails with Busy, as long
  /// as its patience lasts, and lets other commits run between two attempts.
  using InTurn = std::function<Result<void>(const std::function<Result<void>()>& attempt)>;
  /// GroupCommit of the shards of which bytes are staged: all of them change, or none.
  Result<void> commit(const OptionsOf& options_of, const LockOf& lock_of);

 private:
  const Model& model_;
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
};

}  // namespace stfs
