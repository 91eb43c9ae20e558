// Compares the best fit for a gap with all combinations of few tensors.
#include "core/commit/gap_fill.h"

#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

using Random = std::mt19937_64;

struct Question {
  Arrangement now;
  Gap gap;
  std::size_t first = 0;
  std::uint64_t most_bytes = 0;
  std::uint64_t slack_bytes = 0;
};

/// A gap before up to nine small tensors.
Question random_question(Random& random, std::uint64_t most_alignment) {
  Question asked;
  asked.gap = {.next = 0, .begin = 64 + random() % 24, .end = 0};
  asked.gap.end = asked.gap.begin + 1 + random() % 30;
  asked.now.data_at = asked.gap.begin;
  std::uint64_t end = asked.gap.end;
  const std::size_t count = random() % 10;
  for (std::uint32_t at = 0; at < count; ++at) {
    const std::uint64_t alignment = 1ULL << (random() % std::bit_width(most_alignment));
    Block block{{at, {0, alignment * (1 + random() % 12)}}, alignment, false};
    block.range.offset = block.place_from(end);
    end = block.range.end();
    asked.now.blocks.push_back(block);
  }
  asked.now.size_bytes = end;
  asked.first = count == 0 ? 0 : random() % (count + 1);
  asked.most_bytes = random() % 2 == 0 ? end : random() % 60;
  asked.slack_bytes = random() % 2 == 0 ? 0 : random() % 20;
  return asked;
}

/// A gap of that size before tensors of these sizes, of bytes.
Question question_of(const std::vector<std::uint64_t>& sizes, std::uint64_t gap_bytes) {
  Question asked;
  asked.gap = {.next = 0, .begin = 64, .end = 64 + gap_bytes};
  asked.now.data_at = 64;
  std::uint64_t end = asked.gap.end;
  for (const std::uint64_t size_bytes : sizes) {
    const auto at = static_cast<std::uint32_t>(asked.now.blocks.size());
    asked.now.blocks.push_back({{at, {end, size_bytes}}, 1, false});
    end += size_bytes;
  }
  asked.now.size_bytes = asked.most_bytes = end;
  return asked;
}

/// Whether these blocks fill the gap. At most the slack stays free before them, and the header can end where
/// they begin.
bool fills(const Question& asked, const std::vector<std::size_t>& blocks) {
  std::uint64_t sum = 0;
  for (const std::size_t block : blocks) sum += asked.now.blocks[block].range.size_bytes;
  if (blocks.empty() || sum > asked.gap.size_bytes() || asked.gap.size_bytes() - sum > asked.slack_bytes)
    return false;
  const std::uint64_t begin = asked.gap.end - sum;
  if (begin != asked.gap.begin && begin % 8 != 0) return false;
  std::uint64_t behind = 0;
  for (std::size_t at = std::ranges::min(blocks); at < asked.now.blocks.size(); ++at)
    behind += asked.now.blocks[at].range.size_bytes;
  return behind <= asked.most_bytes;
}

/// Tries all combinations of blocks that fill the gap. Returns the first block of the combination nearest to
/// the end.
std::optional<std::size_t> nearest_first(const Question& asked) {
  const std::size_t count = asked.now.blocks.size() - asked.first;
  std::optional<std::size_t> nearest;
  for (std::uint64_t chosen = 1; chosen < 1ULL << count; ++chosen) {
    std::vector<std::size_t> blocks;
    for (std::size_t at = 0; at < count; ++at) {
      if ((chosen >> at) % 2 == 1) blocks.push_back(asked.first + at);
    }
    if (fills(asked, blocks)) nearest = std::max(nearest.value_or(0), blocks.front());
  }
  return nearest;
}

std::optional<std::vector<std::size_t>> answer_to(const Question& asked) {
  PlanningEffort effort;
  return best_fit(asked.now, asked.gap, asked.first, asked.most_bytes, asked.slack_bytes, effort);
}

}  // namespace

TEST_CASE("the best fit of bytes is found whenever there is one, and lies nearest to the end",
          "[core][compaction]") {
  Random random(2026);
  unsigned found = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Question asked = random_question(random, 1);
    INFO("round " << round);
    const auto nearest = nearest_first(asked);
    const auto answer = answer_to(asked);
    REQUIRE(answer.has_value() == nearest.has_value());
    if (!answer) continue;
    ++found;
    CHECK(fills(asked, *answer));
    CHECK(std::ranges::min(*answer) == *nearest);
  }
  CHECK(found > 2000);
}

TEST_CASE("a fit of elements leaves no byte between them, and takes no tensor twice", "[core][compaction]") {
  Random random(1848);
  unsigned found = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Question asked = random_question(random, 8);
    INFO("round " << round);
    const auto answer = answer_to(asked);
    if (!answer) continue;
    ++found;
    REQUIRE(fills(asked, *answer));
    CHECK(std::set<std::size_t>(answer->begin(), answer->end()).size() == answer->size());
    CHECK(std::ranges::min(*answer) >= asked.first);
    std::uint64_t end = asked.gap.end;
    for (const std::size_t block : *answer) end -= asked.now.blocks[block].range.size_bytes;
    for (const std::size_t block : *answer) {
      CHECK(asked.now.blocks[block].place_from(end) == end);
      end += asked.now.blocks[block].range.size_bytes;
    }
    // Tensors of one alignment stay in their order.
    CHECK(std::ranges::is_sorted(*answer, {}, [&](std::size_t block) {
      return std::pair(-static_cast<std::int64_t>(asked.now.blocks[block].alignment), block);
    }));
  }
  CHECK(found > 1000);
}

TEST_CASE("no more sums and additions are tried than the limits allow", "[core][compaction]") {
  // The two large blocks fill the gap only together, and the small blocks behind them are tried first. At
  // most 4,096 sums are kept. Twelve small blocks have 4,096 sums. Eleven small blocks leave room for the
  // sums with one large block.
  for (const std::uint64_t small : {11U, 12U}) {
    std::vector<std::uint64_t> sizes = {8192, 4096};
    for (std::uint64_t power = 0; power < small; ++power) sizes.push_back(1ULL << power);
    CHECK(answer_to(question_of(sizes, 8192 + 4096)).has_value() == (small == 11));
  }
  // Each of N blocks of one size is added to one sum more than the block before it. So 999 blocks make
  // 499,500 additions, and 1,000 blocks make 500,500. At most 500,000 are allowed.
  for (const std::size_t count : {998U, 999U}) {
    std::vector<std::uint64_t> sizes(1 + count, 2);
    sizes.front() = 5001;
    CHECK(answer_to(question_of(sizes, 5001)).has_value() == (count == 998));
    // Blocks that are larger than the gap are not tried.
    sizes.insert(sizes.begin() + 1, 100, 5002);
    CHECK(answer_to(question_of(sizes, 5001)).has_value() == (count == 998));
  }
}
