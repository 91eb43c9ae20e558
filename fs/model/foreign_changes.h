// What other programs change in the shards of a model.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "fs/model/model_parts.h"
#include "fs/write/committers.h"

namespace stfs {

/// Notices it, and tells the parts of the file system. Any thread may call.
class ForeignChanges {
 public:
  /// Must not outlive the parts.
  explicit ForeignChanges(ModelParts& parts) : parts_(parts), looks_(parts.model->shards().size()) {}

  /// The result of a check for changes by others.
  struct Change {
    Stale stale;
    /// Another archive lies at the path, or the header has changed: the model must be reopened.
    bool is_outdated = false;
    /// The file's mode or owner has changed. The directories show other permissions, too.
    bool has_new_permissions = false;
    /// The store failed the check, so the result is unknown.
    bool is_unknown = false;
    /// Another process is in a commit to the shard: check again when it has ended.
    bool is_unsettled = false;
    /// Another process has edited the structure, and nothing was noted of it: StructureEdits::follow().
    bool is_edited = false;
  };
  /// Checks whether another program has changed a shard. If so, every tensor in it may have changed. Finishes
  /// what a process has left that died in a commit. Waits for the shard's turn.
  /// @param follows  false: an edit of the structure by another process makes the model outdated.
  Change check_for_change(std::uint32_t shard, bool follows);
  /// Whether bytes of a shard may be changing, or have changed unnoticed: a commit runs, of this mount or of
  /// another process, or the file's time tells it.
  [[nodiscard]] bool is_unsettled(std::uint32_t shard) const;

  /// Notes that another program has changed bytes of the shard. The caller has the shard's turn and has
  /// adopted the archive's new identity. @return all tensors of the shard, as stale.
  Stale note_touched(std::uint32_t shard);

  /// Call when the model is refused: tensors of a delta's base whose bytes somebody has changed give EIO.
  void break_touched_base();

 private:
  /// What was logged of the last look at a shard, so that it is logged once.
  struct Look {
    std::atomic<bool> is_gone = false;     // no file lies at the path
    std::atomic<bool> is_unknown = false;  // the store failed the look
    std::atomic<bool> is_touched = false;  // somebody else has changed bytes
    FileIdentity seen;                     // of a commit that runs; guarded by the shard's turn
  };
  /// Does the check of check_for_change(). The caller has the shard's turn.
  Change note_foreign_change(std::uint32_t shard, bool follows);
  /// Call after a change of the shard's mode or owner: tells the caches without waiting for a commit.
  void forget_permissions(std::uint32_t shard) const;

  ModelParts& parts_;
  std::vector<Look> looks_;  // by shard
};

}  // namespace stfs
