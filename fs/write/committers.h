// Commits to the shards of a model. A committer has a shard's turn, and the journal that is kept there
// between small commits. ShardWriter (fs/model/shard_writer.h) takes the turns.
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

/// One thread at a time has the turn: it commits to the shard, or checks for changes by other programs.
/// Threads with the turns of different shards do not wait for each other. A large commit lends its turn to
/// small commits.
class Committer {
 public:
  /// @param archive  must outlive the committer.
  Committer(Archive& archive, Durability durability) : archive_(archive), durability_(durability) {}

  CommitTurn turn;
  std::atomic<unsigned> waiting = 0;  // writers of the shard, also in their turns
  /// True if another writer waits for the writer that has the turn.
  [[nodiscard]] bool is_waited_for() const { return waiting > 1; }
  /// True if a writer may be changing the shard. Call with or without the turn.
  [[nodiscard]] bool is_in_attempt() const { return attempts_ > 0; }

  // The caller has the turn:
  /// Call before a commit. From then on tidy() has work.
  void begin_attempt() {
    ++attempts_;
    is_untidy_ = true;
  }
  void end_attempt() { --attempts_; }
  /// CommitOptions::lend_turn.
  bool lend(ByteRange blocks, const std::function<void()>& work) {
    const bool has_entered = turn.lend(blocks, work);
    if (has_entered) is_untidy_ = true;  // a commit on the lent turn may have called tidy() before
    return has_entered;
  }
  /// Settles the kept journal, so that others may change the bytes that the last commits of this mount have
  /// named.
  void settle_journal();
  /// Makes a journal that further small commits share, after several small commits.
  void keep_journal();
  /// Removes the kept journal. Its permissions are for the users who could write the archive when the journal
  /// was made. The next small commit makes another journal.
  void retire_journal();
  /// Settles the journal. May also run while another commit lends its turn, because that commit does not use
  /// the journal.
  /// @return the files that commits have discarded. Close them without the turn, because this takes long.
  std::vector<std::unique_ptr<File>> tidy();

  /// True if a commit has run since the last tidy(). Call with or without the turn.
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
  /// The part of an archive that a commit changes, if it changes only bytes of one shard.
  struct Patch {
    ByteRange place;               // in the archive: the range of all of its tensors
    std::uint64_t size_bytes = 0;  // the number of staged bytes
    /// True if the commit lends its turn. All other patches may run beside a commit that lends its turn.
    [[nodiscard]] bool is_large() const { return size_bytes > kSmallBytes; }
    /// Returns all blocks of the place.
    [[nodiscard]] ByteRange blocks() const;
  };
  /// A commit of this size is so short that other commits may wait for it.
  static constexpr std::uint64_t kSmallBytes = 4 << 20;

  /// True if a commit to the shard may be running.
  [[nodiscard]] bool is_in_attempt(std::uint32_t shard) const {
    return committers_[shard] && committers_[shard]->is_in_attempt();
  }
  /// Settles the kept journals of these shards, whose turns the caller holds, and of all other shards with no
  /// running commit.
  void settle_journals(const Shards& held) const;
  /// Call some time after commits, when no caller waits: settles kept journals, and closes discarded files.
  void tidy();
  /// Removes kept journals. Call at the end of the mount, when no other call is running.
  void end();

 private:
  std::vector<std::unique_ptr<Committer>> committers_;  // by shard; null for a shard that can't be used
};

}  // namespace stfs
