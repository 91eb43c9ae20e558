// Checks for changes that other programs make in the shards of a model.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "fs/tree/bytes.h"

namespace stfs {

class MountedModel;

/// Notes the changes and makes the kernel's caches forget them. Any thread may call.
class ForeignChanges {
 public:
  /// Must not outlive the model. The model already has its shards.
  explicit ForeignChanges(MountedModel& mounted);

  /// The result of a check for changes by others.
  struct Change {
    Stale stale;
    /// Another archive is at the path, or the header has changed: the model must be reopened.
    bool is_outdated = false;
    /// The file's mode or owner has changed. The directories also show other permissions.
    bool has_new_permissions = false;
    /// The store failed the check, so the result is unknown.
    bool is_unknown = false;
    /// Another process is in a commit to the shard: check again when it has ended.
    bool is_unsettled = false;
    /// Another process has edited the structure, and the check has noted nothing of it: call
    /// StructureEdits::follow().
    bool is_edited = false;
  };
  /// Checks whether another program has changed a shard. If so, every tensor in the shard may have changed.
  /// Finishes a commit in which another process has died. Waits for the shard's turn.
  /// @param follows  false: an edit of the structure by another process makes the model outdated.
  Change check_for_change(std::uint32_t shard, bool follows);
  /// Checks only the mode and the owner of a shard's file, and waits for no commit and no directory.
  /// @return true if they have changed. The next check_for_change() also reports the change.
  bool check_permissions(std::uint32_t shard);
  /// True if bytes of a shard may be changing, or may have changed unnoticed. This is so while this mount or
  /// another process commits, and if the file's time shows a change.
  [[nodiscard]] bool is_unsettled(std::uint32_t shard) const;

  /// Notes that another program has changed bytes of the shard. The caller has the shard's turn and has
  /// adopted the archive's new identity. @return all tensors of the shard, as stale.
  Stale note_touched(std::uint32_t shard);

  /// Call when the model is refused. Tensors of a delta's base whose bytes another program has changed then
  /// give EIO.
  void break_touched_base();

 private:
  /// The results of the last checks of a shard. Each state is logged once.
  struct Look {
    std::atomic<bool> is_gone = false;              // no file is at the path
    std::atomic<bool> is_unknown = false;           // the store failed the check
    std::atomic<bool> is_touched = false;           // another program has changed bytes
    std::atomic<bool> has_new_permissions = false;  // check_for_change() has not reported them yet
    FileIdentity seen;                              // of a running commit; guarded by the shard's turn
  };
  /// Does the check of check_for_change(). The caller has the shard's turn.
  Change note_foreign_change(std::uint32_t shard, bool follows);
  /// Call after a change of the shard's mode or owner: tells the caches without waiting for a commit.
  void forget_permissions(std::uint32_t shard) const;

  MountedModel& mounted_;
  std::vector<Look> looks_;  // by shard
};

}  // namespace stfs
