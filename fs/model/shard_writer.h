// A change that this mount commits to shards of its model.
//
//     ShardWriter writer(parts_, foreign_, shards);
//     while (writer.take_turns()) writer.end_attempt(commit(writer.options_of()));
//     ... writer.result() ...
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/commit_options.h"
#include "core/model/transaction_group.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/model_parts.h"
#include "fs/write/committers.h"

namespace stfs {

/// Takes the turns of its shards for an attempt, and takes them anew while another process's lock is in the
/// way (Busy), until CommitOptions::lock_patience ends. Nobody has a turn between two attempts: while one
/// commit waits for another process, others go on. For one thread.
class ShardWriter {
 public:
  using Shards = Committers::Shards;

  /// Must not outlive them.
  /// @param patch  nothing: a change of another kind. It waits for a whole large commit.
  ShardWriter(ModelParts& parts, ForeignChanges& foreign, Shards shards,
              const std::optional<Committers::Patch>& patch = {});
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// This check runs if another process has changed an archive, with the archive's locks held. If it fails,
  /// the commit ends with nothing changed. Set before the first attempt.
  void set_check(std::function<Result<void>()> check) { check_ = std::move(check); }

  /// Waits for the turns of all shards, before the first attempt and between two.
  /// @return false: the result is there. Nobody has the turns then.
  bool take_turns();
  /// The options for a commit to a shard in this attempt. ESTALE if no offset in the shard can be trusted any
  /// more.
  [[nodiscard]] Result<CommitOptions> options(std::uint32_t shard);
  [[nodiscard]] TransactionGroup::OptionsOf options_of() {
    return [this](std::uint32_t shard) { return options(shard); };
  }
  /// How long the writer has been trying.
  [[nodiscard]] std::chrono::steady_clock::duration has_waited() const { return Clock::now() - begin_; }
  /// Ends the attempt, and gives the turns back.
  void end_attempt(Result<void> done);
  /// Of the last attempt.
  [[nodiscard]] Result<void>& result() { return *result_; }

  /// Changes that others have made to shards with tensors, found by the attempts.
  using Foreign = std::map<std::uint32_t, Stale>;
  [[nodiscard]] const Foreign& foreign() const { return found_; }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Committer& committer(std::uint32_t shard) const { return parts_.committers.of(shard); }

  ModelParts& parts_;
  ForeignChanges& foreign_;
  const Shards shards_;
  const std::optional<Committers::Patch> patch_;
  std::function<Result<void>()> check_;
  Foreign found_;
  std::optional<Result<void>> result_;

  const Clock::time_point begin_ = Clock::now();
  std::chrono::milliseconds pause_{0};  // before the next attempt
  bool may_be_beside_;                  // another commit that lends its turn
  // Of the attempt that runs:
  std::vector<std::unique_lock<CommitTurn>> turns_;
  bool is_in_attempt_ = false;
  bool is_beside_ = false;
  std::optional<std::chrono::milliseconds>
      last_wait_;  // if it is the last one: how long the writer has tried
};

}  // namespace stfs
