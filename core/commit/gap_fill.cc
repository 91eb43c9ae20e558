// Adds one block after the other, from the end, to all sums that were reached so far.
#include "core/commit/gap_fill.h"

#include <algorithm>
#include <unordered_map>

namespace stfs {
namespace {

constexpr std::size_t kMostSums = 4096;
constexpr std::size_t kMostAdditions = 500'000;
constexpr std::uint64_t kUnitsPerAddition = 4;  // of PlanningEffort

/// The step that reached a sum.
struct Reached {
  std::size_t block = 0;     // the block that was added last
  std::uint64_t before = 0;  // the sum without this block
};
using Sums = std::unordered_map<std::uint64_t, Reached>;

/// Orders the blocks of a sum by alignment, so that no byte is left between them. Nothing: some bytes are
/// left.
std::optional<std::vector<std::size_t>> in_order(const Arrangement& now, const Gap& gap, const Sums& sums,
                                                 std::uint64_t sum, const Reached& last) {
  std::uint64_t end = gap.end - sum;
  if (end != gap.begin && end % 8 != 0) return std::nullopt;  // a header ends there
  std::vector<std::size_t> blocks = {last.block};
  for (sum = last.before; sum != 0;) {
    const Reached& reached = sums.at(sum);
    blocks.push_back(reached.block);
    sum = reached.before;
  }
  // The search adds blocks from the end of the archive, so these are in the archive's order already.
  std::ranges::stable_sort(blocks, std::ranges::greater{},
                           [&](std::size_t block) { return now.blocks[block].alignment; });
  for (const std::size_t block : blocks) {
    if (now.blocks[block].place_from(end) != end) return std::nullopt;
    end += now.blocks[block].range.size_bytes;
  }
  return blocks;
}

}  // namespace

std::optional<std::vector<std::size_t>> best_fit(const Arrangement& now, const Gap& gap, std::size_t first,
                                                 std::uint64_t most_bytes, std::uint64_t slack_bytes,
                                                 PlanningEffort& effort) {
  const std::uint64_t wanted = gap.size_bytes();
  Sums sums;
  std::vector<std::uint64_t> reached = {0};
  std::uint64_t seen_bytes = 0;
  std::size_t additions = 0;
  for (std::size_t at = now.blocks.size(); at > first; --at) {
    const std::size_t block = at - 1;
    const std::uint64_t size_bytes = now.blocks[block].range.size_bytes;
    seen_bytes += size_bytes;
    if (seen_bytes > most_bytes || !effort.add(1)) return std::nullopt;
    if (size_bytes > wanted) continue;
    const std::size_t count = reached.size();
    additions += count;
    if (additions > kMostAdditions || !effort.add(count * kUnitsPerAddition)) return std::nullopt;
    for (std::size_t of = 0; of < count; ++of) {
      const std::uint64_t sum = reached[of] + size_bytes;
      if (sum > wanted) continue;
      const Reached last{block, reached[of]};
      if (wanted - sum <= slack_bytes) {
        if (auto blocks = in_order(now, gap, sums, sum, last)) return blocks;
        // Alignment left bytes. Another combination, or one with more blocks, may leave none.
      }
      if (reached.size() < kMostSums && sums.emplace(sum, last).second) reached.push_back(sum);
    }
  }
  return std::nullopt;
}

}  // namespace stfs
