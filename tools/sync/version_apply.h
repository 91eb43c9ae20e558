// Applies a published version to a model: one transaction changes all tensors of all shards, and the model's
// sync state.
//
// A version is applied exactly once. No marker is needed to prove that, because the checksum of each tensor's
// new bytes is known. If the present bytes have it, the tensor is done. If the present bytes with the diff
// have it, the diff is applied. Otherwise the diff is damaged or is for another base, and nothing changes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/work.h"
#include "core/commit/commit_options.h"
#include "core/model/model.h"
#include "tools/sync/published_version.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {

struct VersionApplyOptions {
  CommitOptions commit{};
  unsigned threads = 0;  // 0: one for each processor
  /// Checks everything and changes nothing.
  bool is_dry_run = false;
  /// One pass, of the bytes of the model's tensors for which the version has diffs. EINTR: the work was
  /// stopped before the commit, and nothing was changed. Null: no watch.
  Work* work = nullptr;
};

struct VersionOutcome {
  /// The state had the version already: nothing was read.
  bool was_known = false;
  /// Tensors whose bytes have changed, and tensors that had their new bytes already.
  std::uint64_t changed_tensors = 0;
  std::uint64_t done_tensors = 0;
  /// The size of the changed tensors.
  std::uint64_t changed_bytes = 0;
  std::vector<std::string> changed{};  // their names, in order
};

/// Returns true if a full version has exactly the model's tensors, with their dtypes and shapes.
bool has_same_tensors(const PublishedVersion& version, const Model& model);

/// Applies a version. Uses several threads. Each needs about 4 MiB of memory, plus the memory of its decoder.
/// @param model  open for writing, after `state` was locked. Without deltas, and whole.
/// @param state  of the directory of the model's files; read.
/// @return EINVAL (InvalidArgument): the version does not follow the model's version, names tensors that the
///   model lacks, has another base, or is damaged; the message names the version, the tensor and the reason.
///   EOPNOTSUPP: the model's files are in another directory than the state. EROFS: the model has deltas. The
///   errors of a commit. After a failure the model and its state are unchanged, unless the message says that
///   the change is committed.
Result<VersionOutcome> apply_version(const Model& model, const PublishedVersion& version, SyncState& state,
                                     const VersionApplyOptions& options);

}  // namespace stfs::sync
