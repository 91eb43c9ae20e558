// Compaction removes the fillers of an archive by a series of edits. Each edit moves some tensors down.
//
//   before      header  A  ----  B  C  D
//   a step      header  A  B  ----  C  D       B's bytes are copied to the filler, then the header names them
//   afterwards  header  A  B  C  D             the archive ends with its last tensor
//
// Bytes are copied to space that no tensor has, and synced, before the edit begins that names their new place
// (edit_space.h). The bytes are therefore written once. After a crash the archive is the one before a step or
// the one after it. A series that was interrupted needs no record: the next step follows from the archive
// alone.
//
// If tensors near the end of the archive fill a filler exactly (gap_fill.h), only these tensors are moved
// there, and not all tensors behind the filler: the last layer takes the space of a deleted layer. This
// changes the order of the tensors. Tensors whose size is no multiple of 8 bytes go to the end if alignment
// would need a filler.
//
// A tensor that is larger than the filler before it would overlap its own copy. This tensor moves to a
// later filler, or through the journal to the end of the archive. The next tensors move into its gap, and so
// the gap moves to the end. Some tensors move in the same way if a small filler would need too many steps.
//
// A header without room to name other places gets room first, as in every edit (commit/archive_edit.h).
//
// An edit closes gaps only if that is cheap. The forecast decides this once, for all steps of the series.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/archive_edit.h"
#include "core/commit/commit_options.h"
#include "core/commit/planning_effort.h"

namespace stfs {

/// The gaps that a compaction closes.
enum class Gaps {
  All,
  Cheap,  // the gaps that an edit closes by itself (compaction_moves.h)
};

struct CompactionForecast {
  std::uint64_t steps = 0;
  std::uint64_t moved_bytes = 0;   // bytes that are written; tensors in the journal twice
  std::uint64_t needed_bytes = 0;  // the most disk space that a step takes until it has ended
  std::uint64_t freed_bytes = 0;   // by which the archive becomes shorter; 0 if room in its header takes more
  std::uint64_t left_bytes = 0;    // the size of the fillers that stay
  std::vector<ByteRange> left{};   // the places of the gaps that cost too much: absolute, ascending
};

/// Plans all steps. Changes nothing. No steps: the archive is compact.
/// @param check  called from time to time, also between steps.
/// @return HeaderTooLarge (EFBIG), or the error of the check.
Result<CompactionForecast> forecast_compaction(const ArchiveVersion& version, Gaps gaps = Gaps::All,
                                               const PlanningEffort::Check& check = {});

/// The plan of one step.
struct CompactionStep {
  ArchiveEdit edit;
  EditLayout layout;
};
/// Plans the next step. Nothing: no gap can be closed.
/// @param left  gaps that stay. The archive has not been edited since the forecast, other than by its steps.
/// @return as forecast_compaction().
Result<std::optional<CompactionStep>> next_compaction_step(const ArchiveVersion& version,
                                                           std::span<const ByteRange> left = {},
                                                           const PlanningEffort::Check& check = {});

/// Busy (EBUSY): another process has the archive open, and expects its tensors at their places.
Result<void> check_alone(const Archive& archive, bool uses_locks);

/// Makes the next step in a separate transaction. Afterwards, no reader in this process may use the version
/// before: it names places whose bytes are overwritten. Between two steps, a caller that opens the archive
/// again for each step lets other processes edit it.
/// @param left  as in next_compaction_step().
/// @return false: no gap can be closed. Busy (EBUSY): another process has the archive open. Otherwise the
///   errors of a Transaction's commit and of CommitOptions::on_copy.
Result<bool> compact_once(Archive& archive, const CommitOptions& options,
                          std::span<const ByteRange> left = {});

/// Makes the steps of a forecast with Gaps::Cheap, one after the other. Returns the errors of compact_once().
/// Call it directly after the forecast.
Result<void> close_cheap_gaps(Archive& archive, const CompactionForecast& forecast,
                              const CommitOptions& options);

}  // namespace stfs
