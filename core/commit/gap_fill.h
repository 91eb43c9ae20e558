// The best fit for a gap of an archive: tensors from the end that fill it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/commit/arrangement.h"

namespace stfs {

/// Finds blocks behind a gap that fill it, those that lie nearest to the end. Nothing: there are none, or too
/// many combinations have to be tried.
/// @param first  the first block that may move.
/// @param most_bytes  of all blocks from the first that moves to the end: these are moved, too.
/// @param slack_bytes  so much of the beginning of the gap may stay free.
/// @return positions of blocks, in the order in which they end at the end of the gap.
std::optional<std::vector<std::size_t>> best_fit(const Arrangement& now, const Gap& gap, std::size_t first,
                                                 std::uint64_t most_bytes, std::uint64_t slack_bytes);

}  // namespace stfs
