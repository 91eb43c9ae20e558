// Which gaps an edit leaves as fillers, because closing them would move much more than was deleted.
//
// The limit is twice what was deleted, or 1 GiB. Measured on paper with the tensors of Llama 3 8B (15 GiB in
// one file): 290 of 291 tensors, and each of the 32 layers, can be deleted within it, and half of the tensors
// for 0.3 % of the file. Without the factor it is one tensor less, and three of the four layers of a shard of
// Llama 3 70B.
#pragma once

#include <cstdint>

#include "core/commit/arrangement.h"

namespace stfs {

/// How much may be moved to close gaps of so many bytes in all.
std::uint64_t most_moved_bytes(std::uint64_t gap_bytes);

/// Turns gaps that cost too much into fillers among the blocks: next_moves() then leaves them. Gaps near the
/// end cost least, so they are the last ones to be left.
void leave_costly_gaps(Arrangement& now);

}  // namespace stfs
