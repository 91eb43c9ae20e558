// What the next step of a compaction moves where (compaction.h), and which gaps an edit leaves as fillers.
#pragma once

#include <cstdint>
#include <optional>

#include "core/commit/arrangement.h"

namespace stfs {

// A step takes so much space until it has ended, or a tensor's size. The disk space of a smaller gap is not
// given back: the next step would take it again.
inline constexpr std::uint64_t kMostStepBytes = 1ULL << 30U;

/// The moves that close the first gap that can be closed, or a part of it. Nothing: no gap can be closed.
/// Fillers among the blocks stay where they are. A gap before one of them is closed only by tensors that fill
/// it exactly.
std::optional<Moves> next_moves(const Arrangement& now);

// Closing a gap may move much more than was deleted. The limit is twice what was deleted, or 1 GiB. Measured
// on paper with the tensors of Llama 3 8B (15 GiB in one file): 290 of 291 tensors, and each of the 32
// layers, can be deleted within it, and half of the tensors for 0.3 % of the file. Without the factor it is
// one tensor less, and three of the four layers of a shard of Llama 3 70B.

/// How much may be moved to close gaps of so many bytes in all.
std::uint64_t most_moved_bytes(std::uint64_t gap_bytes);

/// Turns gaps that cost too much into fillers among the blocks: next_moves() then leaves them. Gaps near the
/// end cost least, so they are the last ones to be left.
void leave_costly_gaps(Arrangement& now);

}  // namespace stfs
