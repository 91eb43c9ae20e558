// What the next step of a compaction moves where (compaction.h).
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

}  // namespace stfs
