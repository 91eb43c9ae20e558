// A change that this mount commits to shards of its model.
//
//     ShardWriter writer(mounted_, shards);
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
#include "fs/tree/bytes.h"
#include "fs/write/committers.h"

namespace stfs {

class MountedModel;

/// Takes the turns of its shards for an attempt. Retries while another process's lock is in the way (Busy),
/// until CommitOptions::lock_patience ends. The writer has no turn between two attempts, so other commits can
/// run while this one waits for another process. For one thread.
class ShardWriter {
 public:
  using Shards = Committers::Shards;

  /// Must not outlive the model.
  /// @param patch  nothing: a change of another kind, which waits for a whole large commit.
  ShardWriter(MountedModel& mounted, Shards shards, const std::optional<Committers::Patch>& patch = {});
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// `check` runs if another process has changed an archive, with the archive's locks held. If the check
  /// fails, the commit ends and changes nothing. Set before the first attempt.
  void set_check(std::function<Result<void>()> check) { check_ = std::move(check); }

  /// Waits for the turns of all shards, before the first attempt and before each retry.
  /// @return false if the result is known. The writer then has no turn.
  bool take_turns();
  /// The options for a commit to a shard in this attempt. ESTALE if offsets in the shard cannot be trusted
  /// any more.
  [[nodiscard]] Result<CommitOptions> options(std::uint32_t shard);
  [[nodiscard]] TransactionGroup::OptionsOf options_of() {
    return [this](std::uint32_t shard) { return options(shard); };
  }
  /// The time since the writer began to try.
  [[nodiscard]] std::chrono::steady_clock::duration has_waited() const { return Clock::now() - begin_; }
  /// Ends the attempt, and gives back the turns.
  void end_attempt(Result<void> done);
  /// The result of the last attempt.
  [[nodiscard]] Result<void>& result() { return *result_; }

  /// Changes by other programs that the attempts have found in shards with tensors.
  using Foreign = std::map<std::uint32_t, Stale>;
  [[nodiscard]] const Foreign& foreign() const { return found_; }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Committer& committer(std::uint32_t shard) const;

  MountedModel& mounted_;
  const Shards shards_;
  const std::optional<Committers::Patch> patch_;
  std::function<Result<void>()> check_;
  Foreign found_;
  std::optional<Result<void>> result_;

  const Clock::time_point begin_ = Clock::now();
  std::chrono::milliseconds pause_{0};  // before the next attempt
  bool may_be_beside_;                  // true: may share the turn that another commit lends
  // State of the running attempt:
  std::vector<std::unique_lock<CommitTurn>> turns_;
  bool is_in_attempt_ = false;
  bool is_beside_ = false;
  /// In the last attempt: the time since the writer began to try. Nothing in other attempts.
  std::optional<std::chrono::milliseconds> last_wait_;
};

}  // namespace stfs
