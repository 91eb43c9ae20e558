// Commits to one shard: whose turn it is, and the journal that stays between small commits.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/durability.h"
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

  // The caller has the turn:
  /// Call before a commit: tidy() has work from then on.
  void note_begin() { is_untidy_ = true; }
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
  std::atomic<bool> is_untidy_ = false;
};

}  // namespace stfs
