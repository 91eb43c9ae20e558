// Plans the moves of the next step of a compaction (compaction.h), and decides which gaps an edit leaves as
// fillers.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/commit/arrangement.h"
#include "core/commit/planning_effort.h"

namespace stfs {

// A step takes at most this much space, or the size of one tensor. The disk space of a smaller gap is not
// freed, because the next step would take it again.
inline constexpr std::uint64_t kMostStepBytes = 1ULL << 30U;

/// Returns the moves that close the first gap that can be closed, or a part of it. Nothing: no gap can be
/// closed. Fillers among the blocks keep their places. A gap before such a filler is closed only by tensors
/// that fill it exactly. Also nothing: the effort doesn't go on.
std::optional<Moves> next_moves(const Arrangement& now, PlanningEffort& effort);

// Closing a gap may move many more bytes than were deleted. The limit is twice the deleted bytes, or 1 GiB. A
// calculation with the tensors of Llama 3 8B (15 GiB in one file): for 290 of 291 tensors, and for each of
// the 32 layers, the moves after a deletion are within the limit; for half of the tensors they are at most
// 0.3 % of the file. Without the factor the limit suffices for one tensor less, and for three of the four
// layers of a shard of Llama 3 70B.

/// Returns how many bytes may be moved to close gaps of this size in all.
std::uint64_t most_moved_bytes(std::uint64_t gap_bytes);

// The effort of the plan of one edit, about half a second. A plan for one deleted tensor of Llama 3 8B takes
// at most 7 million units, and for 20 of 20,000 tensors it takes 63 million.
inline constexpr std::uint64_t kMostPlanningUnits = 400'000'000;

/// Turns gaps that cost too much into fillers among the blocks, which next_moves() leaves. Gaps near the end
/// cost least, so they are left last. Each step writes the header, so many steps cost too much in an archive
/// with a large header.
/// @param effort  once it doesn't go on, all gaps that have not been tried cost too much.
void leave_costly_gaps(Arrangement& now, PlanningEffort& effort);

}  // namespace stfs
