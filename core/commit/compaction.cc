// Plans a step for the arrangement at hand. The forecast plans one after the other, on paper.
#include "core/commit/compaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/reader_writer_lock.h"
#include "core/commit/edit_header.h"
#include "core/commit/transaction.h"

namespace stfs {
namespace {

constexpr std::uint64_t kRoomPerTensorBytes = 32;  // the digits of its offsets
constexpr std::uint64_t kPageSize = 4096;
// A step takes so much space until it has ended, or a tensor's size. The disk space of a smaller gap is not
// given back: the next step would take it again.
constexpr std::uint64_t kMostStepBytes = 1ULL << 30U;
constexpr std::uint64_t kAlignedTo = 8;
constexpr std::uint64_t kFewSteps = 64;
constexpr std::uint64_t kGapsInRest = 32;  // a gap that is made bigger has this part of what is to be moved

constexpr std::uint64_t aligned_up(std::uint64_t offset, std::uint64_t to) {
  return (offset + to - 1) / to * to;
}

struct Block : TensorAt {
  std::uint64_t alignment = 1;

  [[nodiscard]] std::uint64_t place_from(std::uint64_t offset) const { return aligned_up(offset, alignment); }
};

struct Arrangement {
  std::uint64_t data_at = 0;
  std::uint64_t size_bytes = 0;  // of the archive
  std::vector<Block> blocks;     // ascending
};

/// What leads to the next arrangement.
struct Moves {
  Arrangement after;
  std::vector<EditLayout::Copy> copies;
  std::vector<EditLayout::Placed> placed;
};

/// The bytes that no tensor has, from the end of a block to the beginning of the next.
struct Gap {
  std::size_t next = 0;  // the block behind it; blocks.size(): none
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

void move(Moves& moves, std::size_t at, std::uint64_t to) {
  Block& block = moves.after.blocks[at];
  const std::uint64_t from = block.range.offset;
  block.range.offset = to;
  if (!moves.copies.empty()) {
    EditLayout::Copy& last = moves.copies.back();
    if (last.from + last.size_bytes == from && last.to + last.size_bytes == to) {
      last.size_bytes += block.range.size_bytes;
      return;
    }
  }
  moves.copies.push_back({from, to, block.range.size_bytes});
}

void move_by_journal(Moves& moves, std::size_t at, std::uint64_t to) {
  Block& block = moves.after.blocks[at];
  const std::uint64_t from = std::exchange(block.range.offset, to);
  moves.placed.push_back({block.tensor, block.range, from});
}

void sort_blocks(Arrangement& arrangement) {
  std::ranges::sort(arrangement.blocks, {}, [](const Block& block) { return block.range.offset; });
}

std::uint64_t end_of_blocks(const Arrangement& arrangement) {
  return arrangement.blocks.empty() ? arrangement.data_at : arrangement.blocks.back().range.end();
}

/// The first gap that is wider than alignment needs: edits begin each new tensor at a multiple of 8.
Gap first_gap(const Arrangement& now) {
  std::uint64_t end = now.data_at;
  for (std::size_t at = 0; at < now.blocks.size(); ++at) {
    const Block& block = now.blocks[at];
    const std::uint64_t begin = block.range.offset;
    if (begin - end >= kAlignedTo && block.place_from(end) < begin) return {at, end, begin};
    end = block.range.end();
  }
  return {now.blocks.size(), end, now.size_bytes};
}

std::uint64_t width_of(const Gap& gap) {
  return gap.end - gap.begin;
}

/// Moves as many tensors down into the gap as fit beside each other.
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
    move(moves, at, to);
    end = to + block.range.size_bytes;
  }
  moves.after.size_bytes = end_of_blocks(moves.after);
  return moves;
}

/// Adjacent tensors.
struct Run {
  std::size_t first = 0;
  std::size_t last = 0;  // position of the block behind it
};

bool fills(const Arrangement& now, const Gap& gap, Run run) {
  std::uint64_t end = gap.begin;
  for (std::size_t at = run.first; at < run.last; ++at) {
    const std::uint64_t to = now.blocks[at].place_from(end);
    if (to > gap.end || now.blocks[at].range.size_bytes > gap.end - to) return false;
    end = to + now.blocks[at].range.size_bytes;
  }
  return gap.end - end < kAlignedTo;
}

/// The last tensors of the archive that fill the gap to its end, if all that is to be moved then is half of
/// the bytes at most. They leave their order for that. The gap that they leave is as wide, and far behind.
std::optional<Run> filling_run(const Arrangement& now, const Gap& gap, std::uint64_t rest_bytes) {
  std::uint64_t behind_bytes = 0;  // of the blocks behind the run
  std::uint64_t run_bytes = 0;
  Run run{now.blocks.size(), now.blocks.size()};
  while (run.first > gap.next + 1) {
    run_bytes += now.blocks[--run.first].range.size_bytes;
    while (run_bytes > width_of(gap)) {
      const std::uint64_t left_out_bytes = now.blocks[--run.last].range.size_bytes;
      run_bytes -= left_out_bytes;
      behind_bytes += left_out_bytes;
    }
    if (run_bytes + behind_bytes > rest_bytes / 2) return std::nullopt;
    if (width_of(gap) - run_bytes < kAlignedTo && fills(now, gap, run)) return run;
  }
  return std::nullopt;
}

/// Moves as many tensors of the run into the gap as one step moves.
Moves fill(const Arrangement& now, const Gap& gap, Run run) {
  Moves moves{.after = now, .copies = {}, .placed = {}};
  std::uint64_t end = gap.begin;
  std::uint64_t moved_bytes = 0;
  for (std::size_t at = run.first; at < run.last; ++at) {
    const Block& block = now.blocks[at];
    moved_bytes += block.range.size_bytes;
    if (at > run.first && moved_bytes > kMostStepBytes) break;
    const std::uint64_t to = block.place_from(end);
    move(moves, at, to);
    end = to + block.range.size_bytes;
  }
  sort_blocks(moves.after);
  moves.after.size_bytes = end_of_blocks(moves.after);
  return moves;
}

/// A later gap for the tensors behind a gap, if there is one.
std::optional<std::uint64_t> place_behind(const Arrangement& now, std::size_t first, std::size_t last,
                                          std::uint64_t size_bytes) {
  const std::uint64_t in_page = now.blocks[first].range.offset % kPageSize;  // blocks can then be cloned
  for (std::size_t at = last; at <= now.blocks.size(); ++at) {
    const std::uint64_t begin = now.blocks[at - 1].range.end();
    const std::uint64_t end = at < now.blocks.size() ? now.blocks[at].range.offset : now.size_bytes;
    const std::uint64_t place = aligned_up(begin + kPageSize - in_page, kPageSize) - kPageSize + in_page;
    if (place >= begin && place <= end && end - place >= size_bytes) return place;
  }
  return std::nullopt;
}

/// Makes the gap larger: tensors behind it move to where there is room, or through the journal to the end.
Moves widen(const Arrangement& now, const Gap& gap, std::uint64_t rest_bytes) {
  Moves moves{.after = now, .copies = {}, .placed = {}};
  const std::uint64_t wanted = std::min(rest_bytes / kGapsInRest, kMostStepBytes);
  std::size_t last = gap.next;
  std::uint64_t gap_end = gap.end;
  std::uint64_t size_bytes = 0;  // with what alignment may take
  while (last < now.blocks.size()) {
    const Block& block = now.blocks[last];
    const std::uint64_t needed = std::max(wanted, block.range.size_bytes + kAlignedTo);
    if (last > gap.next && gap_end - gap.begin >= needed) break;
    size_bytes += block.alignment - 1 + block.range.size_bytes;
    gap_end = ++last < now.blocks.size() ? now.blocks[last].range.offset : now.blocks[last - 1].range.end();
  }
  const auto place = place_behind(now, gap.next, last, size_bytes);
  std::uint64_t end = place.value_or(now.size_bytes);
  for (std::size_t at = gap.next; at < last; ++at) {
    const std::uint64_t to = now.blocks[at].place_from(end);
    place ? move(moves, at, to) : move_by_journal(moves, at, to);
    end = to + now.blocks[at].range.size_bytes;
  }
  moves.after.size_bytes = std::max(now.size_bytes, end);
  sort_blocks(moves.after);
  return moves;
}

std::optional<Moves> next_moves(const Arrangement& now) {
  const Gap gap = first_gap(now);
  if (gap.next == now.blocks.size()) {
    if (now.size_bytes == gap.begin) return std::nullopt;
    Moves cut{.after = now, .copies = {}, .placed = {}};
    cut.after.size_bytes = gap.begin;
    return cut;
  }
  const Block& next = now.blocks[gap.next];
  std::uint64_t rest_bytes = 0;
  for (std::size_t at = gap.next; at < now.blocks.size(); ++at) rest_bytes += now.blocks[at].range.size_bytes;
  if (const auto run = filling_run(now, gap, rest_bytes)) return fill(now, gap, *run);
  const std::uint64_t gap_bytes = gap.end - gap.begin;
  const bool fits = next.place_from(gap.begin) + next.range.size_bytes <= gap.end;
  const bool is_small = gap_bytes < kMostStepBytes / 2 && rest_bytes / gap_bytes > kFewSteps;
  return fits && !is_small ? slide(now, gap) : widen(now, gap, rest_bytes);
}

class Compaction {
 public:
  explicit Compaction(const ArchiveVersion& version) : edit_(edit_of(version)) {
    now_.data_at = version.data_offset();
    now_.size_bytes = version.stamp.size_bytes;
    for (std::uint32_t at = 0; at < edit_.tensors.size(); ++at) {
      const ByteRange range = version.file_range(*edit_.tensors[at].from);
      if (range.empty()) continue;
      now_.blocks.push_back({{at, range}, std::max<std::uint64_t>(bits_of(edit_.tensors[at].dtype) / 8, 1)});
    }
    sort_blocks(now_);
  }

  /// Plans the next step, and takes it as done.
  Result<std::optional<EditLayout>> next() {
    auto moves = next_moves(now_);
    if (!moves) return std::optional<EditLayout>();
    auto header = format(moves->after);
    if (!header) return pass_on(std::move(header));
    const std::uint64_t least_bytes = kHeaderLengthBytes + header->json.size();
    if (least_bytes > moves->after.data_at) {
      auto roomy = make_room(least_bytes);
      if (!roomy) return pass_on(std::move(roomy));
      moves = std::move(*roomy);
      header = format(moves->after);
      if (!header) return pass_on(std::move(header));
    }
    const std::uint64_t gap_bytes = width_of(first_gap(moves->after));
    EditLayout layout{.header = pad_header(header->json, moves->after.data_at),
                      .size_bytes = moves->after.size_bytes,
                      .placed = std::move(moves->placed),
                      .fillers = std::move(header->fillers),
                      .freed_bytes = 0,
                      .given_back = {},
                      .needs_all_readers_out = true,
                      .copies = std::move(moves->copies)};
    if (gap_bytes > kMostStepBytes) layout.given_back = layout.fillers;
    now_ = std::move(moves->after);
    return std::optional(std::move(layout));
  }

  [[nodiscard]] ArchiveEdit take_edit() && { return std::move(edit_); }
  [[nodiscard]] std::uint64_t size_bytes() const { return now_.size_bytes; }
  /// Of the gap that is to be filled next, if its disk space is not given back meanwhile.
  [[nodiscard]] std::uint64_t kept_gap_bytes() const {
    const std::uint64_t gap_bytes = width_of(first_gap(now_));
    return gap_bytes > kMostStepBytes ? 0 : gap_bytes;
  }

 private:
  /// Moves the first tensors to the end, through the journal: the header has no room for the digits of other
  /// places.
  [[nodiscard]] Result<Moves> make_room(std::uint64_t least_bytes) const {
    Moves moves{.after = now_, .copies = {}, .placed = {}};
    Arrangement& after = moves.after;
    const std::uint64_t room_bytes = kHeaderRoomBytes + kRoomPerTensorBytes * now_.blocks.size();
    const auto data_at = data_offset_with_room(least_bytes, room_bytes);
    if (!data_at) return tl::unexpected(data_at.error());
    after.data_at = *data_at;
    std::uint64_t end = std::max(now_.size_bytes, after.data_at);
    for (std::size_t at = 0; at < after.blocks.size(); ++at) {
      const Block& block = after.blocks[at];
      if (block.range.offset >= after.data_at) break;
      move_by_journal(moves, at, block.place_from(end));
      end = block.range.end();
    }
    sort_blocks(after);
    after.size_bytes = end;
    return moves;
  }

  [[nodiscard]] Result<EditHeader> format(const Arrangement& arrangement) const {
    const std::vector<TensorAt> placed(arrangement.blocks.begin(), arrangement.blocks.end());
    return format_edit_header(edit_, placed, arrangement.data_at, arrangement.size_bytes);
  }

  ArchiveEdit edit_;
  Arrangement now_;
};

std::uint64_t bytes_moved_by(const EditLayout& layout) {
  std::uint64_t total = 0;
  for (const EditLayout::Copy& copy : layout.copies) total += copy.size_bytes;
  for (const EditLayout::Placed& placed : layout.placed) total += placed.file_range.size_bytes;
  return total;
}

}  // namespace

Result<CompactionForecast> forecast_compaction(const ArchiveVersion& version) {
  return guard_memory([&]() -> Result<CompactionForecast> {
    CompactionForecast forecast;
    Compaction compaction(version);
    for (;;) {
      auto layout = compaction.next();
      if (!layout) return pass_on(std::move(layout));
      if (!*layout) break;
      ++forecast.steps;
      const std::uint64_t moved_bytes = bytes_moved_by(**layout);
      forecast.moved_bytes += moved_bytes;
      // The journal has the header, and what moves through it.
      std::uint64_t needed_bytes = moved_bytes + 2 * (*layout)->header.size();
      if (!(*layout)->placed.empty()) needed_bytes += moved_bytes;
      needed_bytes = std::max(needed_bytes, compaction.kept_gap_bytes());
      forecast.needed_bytes = std::max(forecast.needed_bytes, needed_bytes);
    }
    const std::uint64_t before_bytes = version.stamp.size_bytes;
    forecast.freed_bytes = before_bytes - std::min(before_bytes, compaction.size_bytes());
    return forecast;
  });
}

Result<std::optional<CompactionStep>> next_compaction_step(const ArchiveVersion& version) {
  return guard_memory([&]() -> Result<std::optional<CompactionStep>> {
    Compaction compaction(version);
    auto layout = compaction.next();
    if (!layout) return pass_on(std::move(layout));
    if (!*layout) return std::optional<CompactionStep>();
    return std::optional(CompactionStep{std::move(compaction).take_edit(), std::move(**layout)});
  });
}

Result<bool> compact_once(Archive& archive, const CommitOptions& options) {
  const auto version = archive.version();
  auto step = next_compaction_step(*version);
  if (!step) return tl::unexpected(std::move(step).error().within(archive.path().string()));
  if (!*step) return false;
  if (auto opened = archive.open_for_writing(); !opened) return pass_on(std::move(opened));
  if (options.uses_locks && archive.has_other_readers()) {
    const auto reader = archive.other_reader();
    return fail(ErrorCode::Busy, EBUSY,
                fmt::format("{}: {} has the archive open, and finds its tensors where they are: end it first",
                            archive.path().string(),
                            reader ? fmt::format("process {}", *reader) : "another process, or a mount,"));
  }
  Transaction transaction(archive);
  if (auto begun = transaction.edit(std::move((*step)->edit), std::move((*step)->layout)); !begun)
    return pass_on(std::move(begun));
  ReaderWriterLock lock;  // nobody reads through this archive
  auto done = transaction.commit(options, [&lock](TensorId) -> ReaderWriterLock& { return lock; });
  if (!done) return pass_on(std::move(done));
  return true;
}

}  // namespace stfs
