// Commits to the shards of a model: whose turn it is at each shard, and the journal that stays there between
// small commits. ShardWriter (fs/model/shard_writer.h) takes the turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/durability.h"
#include "core/model/model.h"
#include "fs/write/commit_turn.h"

namespace stfs {

/// One thread at a time has the turn: it commits to the shard, or looks for what others have changed in it.
/// Threads with the turns of different shards do not wait for each other. A large commit lends its turn to
/// small ones.
class Committer {
 public:
  /// @param archive  must outlive the committer.
  Committer(Archive& archive, Durability durability) : archive_(archive), durability_(durability) {}

  CommitTurn turn;
  std::atomic<unsigned> waiting = 0;  // writers of the shard: those that have the turn, too
  /// Whether a writer waits for another one. For the one that has the turn.
  [[nodiscard]] bool is_waited_for() const { return waiting > 1; }
  /// Whether a writer may be changing the shard. May be asked without the turn.
  [[nodiscard]] bool is_in_attempt() const { return attempts_ > 0; }

  // The caller has the turn:
  /// Call before a commit: tidy() has work from then on.
  void begin_attempt() {
    ++attempts_;
    is_untidy_ = true;
  }
  void end_attempt() { --attempts_; }
  /// CommitOptions::lend_turn.
  bool lend(ByteRange blocks, const std::function<void()>& work) {
    const bool has_entered = turn.lend(blocks, work);
    if (has_entered) is_untidy_ = true;  // it may have been tidy()
    return has_entered;
  }
  /// Settles the kept journal, so that others may change the bytes that our last commits have named.
  void settle_journal();
  /// Makes a journal that further small commits share, once several small commits have come.
  void keep_journal();
  /// Removes that journal. Its permissions fit those who could write the archive when the journal was made.
  /// The next small commit makes another one.
  void retire_journal();
  /// Settles the journal. Also while another commit lends its turn: that commit does not use the journal.
  /// @return the files that commits have discarded. Close them without the turn: that takes long.
  std::vector<std::unique_ptr<File>> tidy();

  /// Whether a commit came since the last tidy(). May be asked without the turn.
  [[nodiscard]] bool is_untidy() const { return is_untidy_; }

 private:
  Archive& archive_;
  const Durability durability_;
  std::atomic<unsigned> attempts_ = 0;
  std::atomic<bool> is_untidy_ = false;
};

/// The committers of all shards. Any thread may call.
class Committers {
 public:
  /// @param model  must outlive the committers.
  Committers(const Model& model, Durability durability);

  /// The shard must be usable.
  [[nodiscard]] Committer& of(std::uint32_t shard) const { return *committers_[shard]; }

  using Shards = std::set<std::uint32_t>;
  /// What a commit changes that changes only bytes of one shard.
  struct Patch {
    ByteRange place;               // in the archive: all of its tensors
    std::uint64_t size_bytes = 0;  // of what is staged
    /// Whether it lends its turn. All other patches may run beside one that does.
    [[nodiscard]] bool is_large() const { return size_bytes > kSmallBytes; }
    /// All of the place.
    [[nodiscard]] ByteRange blocks() const;
  };
  /// Small enough for others not to notice that they wait for it.
  static constexpr std::uint64_t kSmallBytes = 4 << 20;

  /// Whether a commit to the shard may be running.
  [[nodiscard]] bool is_in_attempt(std::uint32_t shard) const {
    return committers_[shard] && committers_[shard]->is_in_attempt();
  }
  /// Settles the kept journals of these shards, whose turns the caller has, and of all others with no commit
  /// running.
  void settle_journals(const Shards& held) const;
  /// Call some time after commits, when no caller waits: settles kept journals, and closes discarded files.
  void tidy();
  /// Removes kept journals. Call at the end, when no other call is running.
  void end();

 private:
  std::vector<std::unique_ptr<Committer>> committers_;  // by shard; null for one that can't be used
};

}  // namespace stfs
