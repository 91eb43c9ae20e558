// Plans compactions without files: every plan ends, and leaves no gap.
#include "core/commit/compaction_moves.h"

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

using Random = std::mt19937_64;

std::optional<Moves> next_moves(const Arrangement& now) {
  PlanningEffort effort;
  return stfs::next_moves(now, effort);
}

/// Returns the effort.
std::uint64_t leave_costly_gaps(Arrangement& now) {
  PlanningEffort effort({}, kMostPlanningUnits);
  stfs::leave_costly_gaps(now, effort);
  return effort.units();
}

std::uint64_t below(Random& random, std::uint64_t end) {
  return random() % end;
}

/// Tensors as an aligned writer places them, with some of them removed. Sizes repeat, as in a model.
Arrangement random_arrangement(Random& random) {
  Arrangement now{
      .least_data_at = 100, .data_at = 8 * (13 + below(random, 3)), .size_bytes = 0, .blocks = {}};
  const std::uint64_t scale = 1 + below(random, 3000);
  const std::uint64_t keeps = 1 + below(random, 10);  // of ten
  std::uint64_t end = now.data_at;
  const std::uint64_t count = below(random, 30);
  for (std::uint32_t at = 0; at < count; ++at) {
    const std::uint64_t alignment = 1ULL << below(random, 4);
    const std::uint64_t elements = 1 + (below(random, 2) == 0 ? below(random, 4) : below(random, scale));
    Block block{{at, {0, elements * alignment}}, alignment, false};
    block.range.offset = block.place_from(end);
    end = block.range.end();
    if (below(random, 10) < keeps) now.blocks.push_back(block);
  }
  now.size_bytes = end + below(random, 2) * below(random, 100);
  return now;
}

/// The step leads from one arrangement to the next, and overwrites nothing that a crash would need.
void check_step(const Arrangement& before, const Moves& moves) {
  const Arrangement& after = moves.after;
  REQUIRE(after.blocks.size() == before.blocks.size());
  std::uint64_t end = after.data_at;
  for (const Block& block : after.blocks) {
    REQUIRE(block.range.offset >= end);
    REQUIRE(block.range.offset % block.alignment == 0);
    end = block.range.end();
  }
  REQUIRE(after.size_bytes >= end);
  for (const EditLayout::Copy& copy : moves.copies) {
    for (const Block& block : before.blocks) REQUIRE_FALSE(block.range.overlaps({copy.to, copy.size_bytes}));
  }
  for (const EditLayout::Placed& placed : moves.placed)
    REQUIRE(placed.file_range.offset >= before.size_bytes);
}

std::uint64_t data_bytes(const Arrangement& now) {
  std::uint64_t total = 0;
  for (const Block& block : now.blocks) total += block.range.size_bytes;
  return total;
}

}  // namespace

TEST_CASE("a compaction of any tensors comes to an end, without a gap", "[core][compaction]") {
  Random random(4711);
  for (int round = 0; round < 20'000; ++round) {
    Arrangement now = random_arrangement(random);
    INFO("round " << round);
    unsigned steps = 0;
    std::uint64_t moved_bytes = 0;
    while (auto moves = next_moves(now)) {
      check_step(now, *moves);
      moved_bytes += moves->moved_bytes();
      now = std::move(moves->after);
      REQUIRE(++steps < 1000);
    }
    REQUIRE(gaps_of(now).empty());
    REQUIRE(moved_bytes <= 16 * data_bytes(now));
  }
}

TEST_CASE("fillers that are left stay where they are, and the other gaps are closed around them",
          "[core][compaction]") {
  Random random(815);
  for (int round = 0; round < 20'000; ++round) {
    Arrangement now = random_arrangement(random);
    std::vector<ByteRange> left;
    for (const Gap& gap : gaps_of(now)) {
      if (gap.next == now.blocks.size() || below(random, 2) == 0) continue;
      left.push_back({gap.begin, gap.size_bytes()});
      now.blocks.push_back({{0, left.back()}, 1, true});
    }
    now.sort();
    for (unsigned steps = 0; auto moves = next_moves(now); ++steps) {
      REQUIRE(steps < 1000);
      check_step(now, *moves);
      now = std::move(moves->after);
    }
    for (const ByteRange range : left) {
      REQUIRE(std::ranges::any_of(
          now.blocks, [&](const Block& block) { return block.is_filler && block.range == range; }));
    }
  }
}

namespace {

/// The tensors of Llama 3 8B, in the order in which the reference library stores them.
Arrangement llama_8b() {
  constexpr std::uint64_t kHidden = 4096;
  constexpr std::uint64_t kVocabulary = 128'256;
  constexpr std::uint64_t kKeys = 1024;
  constexpr std::uint64_t kInner = 14'336;
  std::vector<std::uint64_t> elements = {kVocabulary * kHidden, kVocabulary * kHidden};
  for (int layer = 0; layer < 32; ++layer) {
    for (const std::uint64_t width :
         {std::uint64_t{1}, kInner, kInner, kInner, std::uint64_t{1}, kKeys, kHidden, kHidden, kKeys})
      elements.push_back(width * kHidden);
  }
  elements.push_back(kHidden);
  Arrangement model{.least_data_at = 40'000, .data_at = 106'496, .size_bytes = 106'496, .blocks = {}};
  for (const std::uint64_t count : elements) {
    const auto at = static_cast<std::uint32_t>(model.blocks.size());
    model.blocks.push_back({{at, {model.size_bytes, 2 * count}}, 2, false});
    model.size_bytes += 2 * count;
  }
  return model;
}

/// Whether an edit that removes `count` tensors closes the gaps that they leave, with a small part of the
/// effort that is allowed.
bool is_closed_without(const Arrangement& model, std::size_t first, std::size_t count) {
  Arrangement now = model;
  const auto begin = now.blocks.begin() + static_cast<std::ptrdiff_t>(first);
  now.blocks.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
  CHECK(leave_costly_gaps(now) < kMostPlanningUnits / 50);
  return std::ranges::none_of(now.blocks, &Block::is_filler);
}

}  // namespace

TEST_CASE("in a large model nearly all tensors, and all layers, are deleted without a filler",
          "[core][compaction]") {
  const Arrangement model = llama_8b();
  REQUIRE(model.blocks.size() == 291);
  std::size_t closed = 0;
  for (std::size_t at = 0; at < model.blocks.size(); ++at) closed += is_closed_without(model, at, 1);
  CHECK(closed >= 289);
  for (std::size_t layer = 0; layer < 32; ++layer) CHECK(is_closed_without(model, 2 + 9 * layer, 9));
}

TEST_CASE("the padding of a header takes what no tensors fill of a large gap before the first one",
          "[core][compaction]") {
  Arrangement now = llama_8b();
  Block first = now.blocks.front();
  now.blocks.erase(now.blocks.begin());
  first.range.offset = now.size_bytes;
  now.blocks.push_back(first);
  now.size_bytes = first.range.end();
  now.data_at += 69'632;
  std::uint64_t moved_bytes = 0;
  while (auto moves = next_moves(now)) {
    moved_bytes += moves->moved_bytes();
    now = std::move(moves->after);
  }
  CHECK(moved_bytes < data_bytes(now) / 3);
  CHECK(gaps_of(now).empty());
  CHECK(now.data_at - now.least_data_at <= 8 << 20);
}

TEST_CASE("a gap that costs too much does not keep a later one open", "[core][compaction]") {
  Arrangement now = llama_8b();
  now.blocks.erase(now.blocks.begin() + 2 + 9 * 20 + 1);  // a matrix of layer 20
  now.blocks.erase(now.blocks.begin() + 1);               // embed_tokens
  leave_costly_gaps(now);
  CHECK(std::ranges::count_if(now.blocks, &Block::is_filler) == 1);
  CHECK(now.blocks[1].is_filler);
  const auto gaps = gaps_of(now);
  REQUIRE(gaps.size() == 1);
  CHECK(gaps.front().next > 1);
}

namespace {

/// A small tensor behind the header that keeps the padding from growing, a gap, and then the tensors of
/// add().
struct Drawing {
  Arrangement now{.least_data_at = 4096, .data_at = 4096, .size_bytes = 4096, .blocks = {}};

  explicit Drawing(std::uint64_t gap_bytes) { add(4096).leave(gap_bytes); }
  Drawing& add(std::uint64_t size_bytes, std::uint64_t alignment = 1) {
    const auto tensor = static_cast<std::uint32_t>(now.blocks.size());
    now.blocks.push_back({{tensor, {now.size_bytes, size_bytes}}, alignment, false});
    now.size_bytes += size_bytes;
    return *this;
  }
  Drawing& leave(std::uint64_t gap_bytes) {
    now.size_bytes += gap_bytes;
    return *this;
  }
};

/// The first place at or behind `begin` with the same position in its page as `offset`.
std::uint64_t place_in_page(std::uint64_t begin, std::uint64_t offset) {
  while (begin % 4096 != offset % 4096) ++begin;
  return begin;
}

}  // namespace

TEST_CASE(
    "a tensor goes to a later gap that has exactly the room for it, and to the end if a byte is missing",
    "[core][compaction]") {
  constexpr std::uint64_t kTensorBytes = 3 * 4096 + 8;
  for (const std::uint64_t alignment : {1, 2, 8}) {
    for (const std::uint64_t shift : {0, 8, 4088, 4096}) {  // of the later gap's begin
      for (const bool is_last : {false, true}) {
        for (const std::uint64_t missing : {0, 1}) {
          INFO("alignment " << alignment << ", shift " << shift << ", last " << is_last << ", " << missing);
          Drawing drawing(4096);
          drawing.add(kTensorBytes, alignment).add(10'240 + shift);
          const std::uint64_t from = drawing.now.blocks[1].range.offset;
          const std::uint64_t begin = drawing.now.size_bytes;
          const std::uint64_t to = place_in_page(begin, from);
          drawing.leave(to - begin + alignment - 1 + kTensorBytes - missing);
          if (!is_last) drawing.add(100'000);
          const auto moves = next_moves(drawing.now);
          REQUIRE(moves);
          CHECK(moves->copies.size() == 1 - missing);
          CHECK(moves->placed.empty() == (missing == 0));
          if (missing == 0) CHECK(moves->copies.front().from == from);
          if (missing == 0) CHECK(moves->copies.front().to == to);
        }
      }
    }
  }
}

TEST_CASE("a step moves tensors down until they are more than its most bytes", "[core][compaction]") {
  constexpr std::uint64_t kFirst = 12'345'678;
  for (const int more : {-1, 0, 1}) {
    INFO(more << " bytes more than the most");
    const std::uint64_t second = kMostStepBytes - kFirst + static_cast<std::uint64_t>(more);
    Drawing slides(4 * kMostStepBytes + 8);
    slides.add(kFirst).add(second).add(kFirst);
    const auto slid = next_moves(slides.now);
    REQUIRE(slid);
    CHECK(slid->moved_bytes() == (more <= 0 ? kFirst + second : kFirst));

    // The last two tensors fill the gap. At most half of the bytes behind the gap may move for that.
    Drawing fills(kFirst + second);
    fills.add(4 * kMostStepBytes).add(second).add(kFirst);
    const auto filled = next_moves(fills.now);
    REQUIRE(filled);
    CHECK(filled->moved_bytes() <= kMostStepBytes);
    CHECK((filled->moved_bytes() == kFirst + second) == (more <= 0));
  }
}

TEST_CASE("a tensor that is as large as the gap moves into it, without the journal", "[core][compaction]") {
  constexpr std::uint64_t kGapBytes = 64 * 1024;
  for (const int more : {-8, 0, 8}) {
    INFO(more << " bytes more than the gap");
    Drawing drawing(kGapBytes);
    drawing.add(kGapBytes + static_cast<std::uint64_t>(more)).add(100'000);
    const auto moves = next_moves(drawing.now);
    REQUIRE(moves);
    CHECK(moves->placed.empty() == (more <= 0));
    CHECK(moves->copies.empty() == (more > 0));
  }
}

TEST_CASE("the header's padding takes a gap of a 256th of the tensors behind it, and of no more",
          "[core][compaction]") {
  constexpr std::uint64_t kTensorBytes = 1 << 20;
  for (const std::uint64_t more : {0, 8}) {
    INFO(more << " bytes more than the 256th");
    const std::uint64_t gap_bytes = kTensorBytes / 256 + more;
    Arrangement now{.least_data_at = 4096, .data_at = 4096, .size_bytes = 0, .blocks = {}};
    now.blocks.push_back({{0, {4096 + gap_bytes, kTensorBytes}}, 8, false});
    now.size_bytes = now.blocks.back().range.end();
    const auto moves = next_moves(now);
    REQUIRE(moves);
    CHECK((moves->moved_bytes() == 0) == (more == 0));
    CHECK((moves->after.data_at == 4096 + gap_bytes) == (more == 0));
  }
}

namespace {

/// Tensors of random sizes, the first ones with gaps before them.
Arrangement with_many_gaps(std::uint32_t tensors, std::uint32_t gaps, std::uint64_t header_bytes) {
  Random random(1);
  Arrangement now{
      .least_data_at = header_bytes, .data_at = header_bytes, .size_bytes = header_bytes, .blocks = {}};
  for (std::uint32_t at = 0; at < tensors; ++at) {
    if (at < gaps) now.size_bytes += 8 * (1 + below(random, 1000));
    const std::uint64_t size_bytes = 8 * (1 + below(random, 1000));
    now.blocks.push_back({{at, {now.size_bytes, size_bytes}}, 1, false});
    now.size_bytes += size_bytes;
  }
  return now;
}

}  // namespace

TEST_CASE("the plan for an archive with thousands of gaps ends, and leaves gaps", "[core][compaction]") {
  // The small header allows so many steps that the first try needs all of the effort.
  for (const std::uint64_t header_bytes : {20'000, 2'000'000}) {
    Arrangement now = with_many_gaps(20'000, 10'000, header_bytes);
    const std::uint64_t units = leave_costly_gaps(now);
    CHECK(units > kMostPlanningUnits);
    CHECK(units < kMostPlanningUnits + 1'000'000);
    CHECK(std::ranges::count_if(now.blocks, &Block::is_filler) > 9900);
    PlanningEffort effort;
    while (auto moves = stfs::next_moves(now, effort)) now = std::move(moves->after);
    CHECK(effort.units() < kMostPlanningUnits);
    CHECK(gaps_of(now).empty());
  }
}

TEST_CASE("gaps that would need many steps stay if each step writes a large header", "[core][compaction]") {
  for (const std::uint64_t header_bytes : {40'000, 4'000'000, 8'000'000}) {
    Arrangement now = with_many_gaps(1000, 100, header_bytes);
    leave_costly_gaps(now);
    CHECK(std::ranges::any_of(now.blocks, &Block::is_filler) == (header_bytes == 8'000'000));
  }
}

TEST_CASE("a failed check ends the planning", "[core][compaction]") {
  Arrangement now = with_many_gaps(20'000, 10'000, 2'000'000);
  PlanningEffort effort([] { return fail(ErrorCode::System, EINTR, "enough"); });
  stfs::leave_costly_gaps(now, effort);
  CHECK_FALSE(effort.result());
  CHECK(effort.units() < 2 * PlanningEffort::kUnitsPerCheck);
  CHECK_FALSE(stfs::next_moves(now, effort));
}
