// The options of one model of a mount.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/commit/commit_options.h"
#include "fs/base/activity.h"
#include "fs/base/user_counts.h"
#include "fs/tree/inode_table.h"

namespace stfs {

struct MountedModelOptions {
  Layout layout = Layout::Flat;
  bool is_read_only = false;
  bool allows_edits = true;  // tensors may be made, deleted, renamed and retyped
  /// -o compact=on: tensors move into the gaps that edits have left, if the move is cheap. They move while no
  /// commit runs, and at the end of the mount.
  bool closes_gaps = false;
  bool reshapes = false;  // a NumPy file of another shape replaces a tensor
  /// -o on_change=fail: after another program has written to the model, all reads of files that were looked
  /// up earlier fail with ESTALE (TensorReader), and the model is outdated. Needs is_read_only and a settled
  /// model.
  bool fails_on_change = false;
  std::optional<uid_t> uid;  // default: the archive's; so is gid
  std::optional<gid_t> gid;
  mode_t umask = 0;
  bool is_shared = false;  // other users may enter the mount
  CommitOptions commit;
  /// The counts of the model so far. Null: the model starts new counts.
  std::shared_ptr<Activity> activity;
  UserLimits user_limits{};
  std::uint64_t least_generation = 0;  // no tensor begins with a lower generation
};

}  // namespace stfs
