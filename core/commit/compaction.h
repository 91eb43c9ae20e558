// How an archive gets rid of its fillers: a series of edits, each of which moves some tensors down.
//
//   before      header  A  ----  B  C  D
//   a step      header  A  B  ----  C  D       B's bytes are copied to the filler, then the header names them
//   afterwards  header  A  B  C  D             the archive ends with its last tensor
//
// Bytes are copied to space that no tensor has, and synced, before the edit begins that names their new place
// (edit_space.h). So they are written once, and after a crash the archive is the one before a step or after
// it. A series that was interrupted needs no record: the next step follows from the archive alone.
//
// Where tensors near the end of the archive fill a filler exactly (gap_fill.h), they alone go there, and not
// all tensors behind it: a deleted layer's space takes the last layer. The order of the tensors changes for
// that. Tensors whose size is no multiple of 8 bytes go to the end where alignment would need a filler.
//
// A tensor that is larger than the filler before it would overlap its own copy. Then it moves to a later
// filler, or through the journal to the end of the archive: the gap that it leaves takes the next tensors,
// and so moves to the end. The same is done with some tensors where a small filler would need too many steps.
//
// A header without room to name other places gets room first, as in every edit (commit/archive_edit.h).
#pragma once

#include <cstdint>
#include <optional>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/commit/archive_edit.h"
#include "core/commit/commit_options.h"

namespace stfs {

/// Which gaps are closed.
enum class Gaps {
  All,
  Cheap,  // an edit closes these by itself (compaction_moves.h)
};

struct CompactionForecast {
  std::uint64_t steps = 0;
  std::uint64_t moved_bytes = 0;   // that are written; tensors in the journal count twice
  std::uint64_t needed_bytes = 0;  // the most disk space that a step takes until it has ended
  std::uint64_t freed_bytes = 0;   // by which the archive becomes shorter; 0 if room in its header takes more
  std::uint64_t left_bytes = 0;    // of fillers that stay
};

/// Plans all steps. Changes nothing. No steps: the archive is compact.
/// @return HeaderTooLarge (EFBIG).
Result<CompactionForecast> forecast_compaction(const ArchiveVersion& version, Gaps gaps = Gaps::All);

/// What one step makes of the archive.
struct CompactionStep {
  ArchiveEdit edit;
  EditLayout layout;
};
/// Plans the next step. Nothing: the archive is compact.
Result<std::optional<CompactionStep>> next_compaction_step(const ArchiveVersion& version,
                                                           Gaps gaps = Gaps::All);

/// Busy (EBUSY): another process has the archive open, and finds its tensors where they are.
Result<void> check_alone(const Archive& archive, bool uses_locks);

/// Carries out the next step in a transaction of its own. No reader in this process may use the version
/// before: it names places whose bytes are gone. A caller that opens the archive again for each step lets
/// others edit it in between.
/// @return false: the archive is compact. Busy (EBUSY): another process has it open. The errors of a
///   Transaction's commit, and those of CommitOptions::on_copy.
Result<bool> compact_once(Archive& archive, const CommitOptions& options, Gaps gaps = Gaps::All);

/// Carries out the steps of a forecast with Gaps::Cheap, one after the other. The errors of compact_once().
Result<void> close_cheap_gaps(Archive& archive, std::uint64_t steps, const CommitOptions& options);

}  // namespace stfs
