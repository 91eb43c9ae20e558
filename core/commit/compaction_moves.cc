#include "core/commit/compaction_moves.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/commit/gap_fill.h"

namespace stfs {
namespace {

constexpr std::uint64_t kPageSize = 4096;
constexpr std::uint64_t kLargestAlignment = 8;  // of the elements of all dtypes
constexpr std::uint64_t kFewSteps = 64;
constexpr std::uint64_t kGapsInRest = 32;  // a gap is widened to this part of the bytes behind it
// A reader of the header skips this much padding in a few milliseconds.
constexpr std::uint64_t kMostPaddingBytes = 8 << 20;
constexpr std::uint64_t kCheapPadding = 256;  // padding must save this many times its size in moved bytes

// For costly gaps:
constexpr std::uint64_t kAlwaysMovedBytes = 1ULL << 30U;
constexpr unsigned kMostSteps = 10'000;                    // planned steps
constexpr unsigned kMostTried = 64;                        // gaps
constexpr std::uint64_t kMostHeaderBytes = 512ULL << 20U;  // in all steps

// For PlanningEffort: a step copies and sorts all blocks.
constexpr std::uint64_t kStepUnitsPerBlock = 16;

/// Moves down into the gap as many tensors as fit beside each other.
Moves slide(const Arrangement& now, const Gap& gap) {
  Moves moves{.after = now, .copies = {}, .placed = {}};
  std::uint64_t end = gap.begin;
  std::uint64_t moved_bytes = 0;
  for (std::size_t at = gap.next; at < now.blocks.size(); ++at) {
    const Block& block = now.blocks[at];
    const std::uint64_t to = block.place_from(end);
    moved_bytes += block.range.size_bytes;
    if (to >= block.range.offset || to + block.range.size_bytes > gap.end) break;
    if (at > gap.next && moved_bytes > kMostStepBytes) break;
    moves.copy(at, to);
    end = to + block.range.size_bytes;
  }
  moves.after.size_bytes = moves.after.end_of_blocks();
  return moves;
}

/// Moves as many of the blocks to the end of the gap as one step moves. The header's padding takes the bytes
/// that are left before them.
Moves fill(const Arrangement& now, const Gap& gap, const std::vector<std::size_t>& blocks) {
  Moves moves{.after = now, .copies = {}, .placed = {}};
  std::uint64_t begin = gap.end;
  for (const std::size_t at : blocks) begin -= now.blocks[at].range.size_bytes;
  std::uint64_t end = begin;
  for (const std::size_t at : blocks) {
    const std::uint64_t size_bytes = now.blocks[at].range.size_bytes;
    if (end != begin && end + size_bytes - begin > kMostStepBytes) break;
    moves.copy(at, end);
    end += size_bytes;
  }
  if (begin != gap.begin) moves.after.data_at = begin;
  moves.after.sort();
  moves.after.size_bytes = moves.after.end_of_blocks();
  return moves;
}

/// Returns the place of a later gap for the tensors behind a gap, if there is one.
std::optional<std::uint64_t> place_behind(const Arrangement& now, std::size_t first, std::size_t last,
                                          std::uint64_t size_bytes) {
  const std::uint64_t in_page = now.blocks[first].range.offset % kPageSize;  // blocks can then be cloned
  for (std::size_t at = last; at <= now.blocks.size(); ++at) {
    const std::uint64_t begin = now.blocks[at - 1].range.end();
    const std::uint64_t end = at < now.blocks.size() ? now.blocks[at].range.offset : now.size_bytes;
    const std::uint64_t place =
        (begin + kPageSize - in_page + kPageSize - 1) / kPageSize * kPageSize - kPageSize + in_page;
    if (place >= begin && place <= end && end - place >= size_bytes) return place;
  }
  return std::nullopt;
}

bool is_ragged(const Block& block) {
  return !block.is_filler && block.range.size_bytes % kLargestAlignment != 0;
}

/// Moves blocks to the end, through the journal. Blocks whose size is no multiple of 8 bytes are last, in the
/// order of their alignment. This leaves no gap behind the others, and none between these blocks.
void move_to_end(Moves& moves, std::vector<std::size_t> blocks) {
  std::vector<Block>& all = moves.after.blocks;
  std::ranges::stable_sort(blocks, std::ranges::greater{}, [&](std::size_t at) {
    return is_ragged(all[at]) ? all[at].alignment : 2 * kLargestAlignment;
  });
  std::uint64_t end = moves.after.size_bytes;
  for (const std::size_t at : blocks) {
    moves.move(at, all[at].place_from(end));
    end = all[at].range.end();
  }
  moves.after.size_bytes = end;
  moves.after.sort();
}

/// Makes the gap larger: tensors behind it move to a later gap, or through the journal to the end.
Moves widen(const Arrangement& now, const Gap& gap, std::uint64_t rest_bytes) {
  Moves moves{.after = now, .copies = {}, .placed = {}};
  const std::uint64_t wanted = std::min(rest_bytes / kGapsInRest, kMostStepBytes);
  std::size_t last = gap.next;
  std::uint64_t gap_end = gap.end;
  std::uint64_t size_bytes = 0;  // with room for alignment
  while (last < now.blocks.size()) {
    const Block& block = now.blocks[last];
    const std::uint64_t needed = std::max(wanted, block.range.size_bytes + kLargestAlignment);
    if (last > gap.next && gap_end - gap.begin >= needed) break;
    size_bytes += block.alignment - 1 + block.range.size_bytes;
    gap_end = ++last < now.blocks.size() ? now.blocks[last].range.offset : now.blocks[last - 1].range.end();
  }
  const auto place = place_behind(now, gap.next, last, size_bytes);
  if (!place) {
    std::vector<std::size_t> blocks;
    for (std::size_t at = gap.next; at < last; ++at) blocks.push_back(at);
    std::size_t tail = now.blocks.size();
    while (tail > last && is_ragged(now.blocks[tail - 1])) blocks.push_back(--tail);
    move_to_end(moves, std::move(blocks));
    return moves;
  }
  std::uint64_t end = *place;
  for (std::size_t at = gap.next; at < last; ++at) {
    moves.copy(at, now.blocks[at].place_from(end));
    end = moves.after.blocks[at].range.end();
  }
  moves.after.sort();
  return moves;
}

/// Closes a gap that only alignment needs. The tensors before it whose size is no multiple of 8 bytes go to
/// the end, with all others of that kind behind the gap.
std::optional<Moves> move_ragged(const Arrangement& now, const Gap& gap) {
  const auto is_aligned = [&](std::size_t at) {
    return now.blocks[at].range.offset % kLargestAlignment == 0;
  };
  std::size_t first = gap.next;
  do {
    if (first == 0 || now.blocks[first - 1].is_filler) return std::nullopt;
  } while (!is_aligned(--first));
  std::vector<std::size_t> ragged;
  std::uint64_t moved_bytes = 0;
  for (std::size_t at = first; at < now.blocks.size(); ++at) {
    if (!is_ragged(now.blocks[at])) continue;
    ragged.push_back(at);
    moved_bytes += now.blocks[at].range.size_bytes;
  }
  if (ragged.empty() || moved_bytes > kMostStepBytes) return std::nullopt;
  Moves moves{.after = now, .copies = {}, .placed = {}};
  move_to_end(moves, std::move(ragged));
  return moves;
}

/// Returns how much of a gap before the first tensor the header's padding may take.
std::uint64_t most_padding_over(const Arrangement& now, const Gap& gap, std::uint64_t rest_bytes) {
  const std::uint64_t padding_bytes = now.data_at - std::min(now.least_data_at, now.data_at);
  if (gap.begin != now.data_at || gap.end % kLargestAlignment != 0) return 0;
  return std::min(kMostPaddingBytes - std::min(padding_bytes, kMostPaddingBytes), rest_bytes / kCheapPadding);
}

std::optional<Moves> close(const Arrangement& now, const Gap& gap, bool is_only_gap, PlanningEffort& effort) {
  if (gap.next == now.blocks.size()) {
    Moves cut{.after = now, .copies = {}, .placed = {}};
    cut.after.size_bytes = gap.begin;
    return cut;
  }
  const Block& next = now.blocks[gap.next];
  std::uint64_t rest_bytes = 0;
  std::size_t behind_fillers = gap.next;
  if (!effort.add(now.blocks.size() - gap.next)) return std::nullopt;
  for (std::size_t at = gap.next; at < now.blocks.size(); ++at) {
    rest_bytes += now.blocks[at].range.size_bytes;
    if (now.blocks[at].is_filler) behind_fillers = at + 1;
  }
  const bool may_slide = behind_fillers == gap.next;
  const std::uint64_t slack_bytes = most_padding_over(now, gap, rest_bytes);
  if (gap.size_bytes() <= slack_bytes) return fill(now, gap, {});
  // Otherwise the tensors behind the gap stay if a later gap can't be closed without them.
  const bool may_fill = gap.end % kLargestAlignment == 0 || is_only_gap || !may_slide;
  const auto filling = !may_fill   ? std::nullopt
                       : may_slide ? best_fit(now, gap, gap.next + 1, rest_bytes / 2, slack_bytes, effort)
                                   : best_fit(now, gap, behind_fillers, rest_bytes, slack_bytes, effort);
  if (filling) return fill(now, gap, *filling);
  if (!may_slide) return std::nullopt;
  if (next.place_from(gap.begin) >= next.range.offset) return move_ragged(now, gap);
  const bool fits = next.place_from(gap.begin) + next.range.size_bytes <= gap.end;
  const bool is_small = gap.size_bytes() < kMostStepBytes / 2 && rest_bytes / gap.size_bytes() > kFewSteps;
  return fits && !is_small ? slide(now, gap) : widen(now, gap, rest_bytes);
}

/// Returns true if all gaps can be closed, and if that is cheap.
bool is_cheap(Arrangement now, PlanningEffort& effort) {
  const std::vector<Gap> gaps = gaps_of(now);
  std::uint64_t gap_bytes = 0;
  for (const Gap& gap : gaps) gap_bytes += gap.size_bytes();
  const std::uint64_t most_bytes = most_moved_bytes(gap_bytes);
  const std::uint64_t most_steps =
      std::min<std::uint64_t>(kMostSteps, kMostHeaderBytes / std::max<std::uint64_t>(now.least_data_at, 1));
  if (gaps.size() > most_steps) return false;  // nearly each gap needs a separate step
  std::uint64_t moved_bytes = 0;
  for (std::uint64_t step = 0; step < most_steps; ++step) {
    auto moves = next_moves(now, effort);
    if (!effort.goes_on()) return false;
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

std::optional<Moves> next_moves(const Arrangement& now, PlanningEffort& effort) {
  effort.add(kStepUnitsPerBlock * now.blocks.size());
  const std::vector<Gap> gaps = gaps_of(now);
  for (const Gap& gap : gaps) {
    auto moves = close(now, gap, gaps.size() == 1, effort);
    if (!effort.goes_on()) break;
    if (moves) return moves;
  }
  return std::nullopt;
}

std::uint64_t most_moved_bytes(std::uint64_t gap_bytes) {
  return std::max(2 * gap_bytes, kAlwaysMovedBytes);
}

void leave_costly_gaps(Arrangement& now, PlanningEffort& effort) {
  if (is_cheap(now, effort)) return;
  std::vector<Gap> left = gaps_of(now);
  std::erase_if(left, [&](const Gap& gap) { return gap.next == now.blocks.size(); });
  unsigned tried = 0;
  for (std::size_t at = left.size(); at > 0 && tried < kMostTried && effort.goes_on(); --at, ++tried) {
    std::vector<Gap> others = left;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(at - 1));
    if (is_cheap(with_fillers(now, others), effort)) left = std::move(others);
  }
  now = with_fillers(now, left);
}

}  // namespace stfs
