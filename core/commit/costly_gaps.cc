#include "core/commit/costly_gaps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/commit/compaction_moves.h"

namespace stfs {
namespace {

constexpr std::uint64_t kAlwaysMovedBytes = 1ULL << 30U;
constexpr unsigned kMostSteps = 10'000;  // on paper
constexpr unsigned kMostTried = 64;      // gaps

/// Whether all gaps can be closed, and are cheap to close.
bool is_cheap(Arrangement now) {
  std::uint64_t gap_bytes = 0;
  for (const Gap& gap : gaps_of(now)) gap_bytes += gap.size_bytes();
  const std::uint64_t most_bytes = most_moved_bytes(gap_bytes);
  std::uint64_t moved_bytes = 0;
  for (unsigned step = 0; step < kMostSteps; ++step) {
    auto moves = next_moves(now);
    if (!moves) return gaps_of(now).empty();
    moved_bytes += moves->moved_bytes();
    if (moved_bytes > most_bytes) return false;
    now = std::move(moves->after);
  }
  return false;
}

Arrangement with_fillers(const Arrangement& now, const std::vector<Gap>& gaps) {
  Arrangement filled = now;
  for (const Gap& gap : gaps) filled.blocks.push_back({{0, {gap.begin, gap.size_bytes()}}, 1, true});
  filled.sort();
  return filled;
}

}  // namespace

std::uint64_t most_moved_bytes(std::uint64_t gap_bytes) {
  return std::max(2 * gap_bytes, kAlwaysMovedBytes);
}

void leave_costly_gaps(Arrangement& now) {
  if (is_cheap(now)) return;
  std::vector<Gap> left = gaps_of(now);
  std::erase_if(left, [&](const Gap& gap) { return gap.next == now.blocks.size(); });
  unsigned tried = 0;
  for (std::size_t at = left.size(); at > 0 && tried < kMostTried; --at, ++tried) {
    std::vector<Gap> others = left;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(at - 1));
    if (is_cheap(with_fillers(now, others))) left = std::move(others);
  }
  now = with_fillers(now, left);
}

}  // namespace stfs
