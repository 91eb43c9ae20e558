// Finds the best fit for a gap of an archive: tensors from the end that fill it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/commit/arrangement.h"
#include "core/commit/planning_effort.h"

namespace stfs {

/// Finds blocks behind a gap that fill it, as near to the end as possible. Nothing: there are none, or too
/// many combinations have to be tried.
/// @param first  the first block that may move.
/// @param most_bytes  the limit for all blocks from the first moved block to the end, because these move
///                    also.
/// @param slack_bytes  this much of the beginning of the gap may stay free.
/// @return positions of blocks, in the order in which they fill the gap up to its end.
std::optional<std::vector<std::size_t>> best_fit(const Arrangement& now, const Gap& gap, std::size_t first,
                                                 std::uint64_t most_bytes, std::uint64_t slack_bytes,
                                                 PlanningEffort& effort);

}  // namespace stfs
