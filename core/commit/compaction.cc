// Plans one step for an arrangement. The forecast plans all steps, one after the other, without making them.
#include "core/commit/compaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/reader_writer_lock.h"
#include "core/commit/arrangement.h"
#include "core/commit/compaction_moves.h"
#include "core/commit/edit_space.h"
#include "core/commit/transaction.h"

namespace stfs {
namespace {

constexpr std::uint64_t kRoomPerTensorBytes = 32;  // the digits of its offsets
constexpr std::uint64_t kUnitsPerHeaderByte = 8;   // of PlanningEffort

std::uint64_t first_gap_bytes(const Arrangement& now) {
  const auto gaps = gaps_of(now);
  return gaps.empty() ? 0 : gaps.front().size_bytes();
}

class Compaction {
 public:
  /// Fails with HeaderTooLarge (EFBIG).
  /// @param left  gaps that stay. The header may have taken the place of some of them.
  static Result<Compaction> of(const ArchiveVersion& version, std::span<const ByteRange> left) {
    Compaction made(version);
    auto header = made.format(made.now_);
    RETURN_IF_ERROR(header);
    made.now_.least_data_at = kHeaderLengthBytes + header->json.size();
    for (const ByteRange gap : left) made.now_.blocks.push_back({{0, gap}, 1, true});
    cut_fillers_below(made.now_);
    made.now_.sort();
    return made;
  }
  /// Leaves the gaps that an edit does not close. Returns the error of the check.
  Result<void> leave_costly(const PlanningEffort::Check& check) {
    PlanningEffort effort(check, kMostPlanningUnits);
    leave_costly_gaps(now_, effort);
    gaps_ = Gaps::Cheap;
    return effort.result();
  }

  /// Plans the next step, and applies it to the arrangement.
  /// @param effort  without a limit.
  Result<std::optional<EditLayout>> next(PlanningEffort& effort) {
    auto moves = next_moves(now_, effort);
    RETURN_IF_ERROR(effort.result());
    if (!moves) return std::optional<EditLayout>();
    auto header = format(moves->after);
    RETURN_IF_ERROR(header);
    // In parts, because a caller may count the checks.
    for (std::uint64_t units = kUnitsPerHeaderByte * header->json.size(); units > 0 && effort.goes_on();) {
      const std::uint64_t part = std::min(units, PlanningEffort::kUnitsPerCheck);
      effort.add(part);
      units -= part;
    }
    RETURN_IF_ERROR(effort.result());
    const std::uint64_t least_bytes = kHeaderLengthBytes + header->json.size();
    if (least_bytes > moves->after.data_at) {
      auto roomy = make_room(least_bytes);
      RETURN_IF_ERROR(roomy);
      if (gaps_ == Gaps::Cheap && roomy->moved_bytes() > most_moved_bytes(0))
        return std::optional<EditLayout>();
      moves = std::move(*roomy);
      header = format(moves->after);
      RETURN_IF_ERROR(header);
    }
    const std::uint64_t gap_bytes = first_gap_bytes(moves->after);
    EditLayout layout;
    layout.size_bytes = moves->after.size_bytes;
    layout.placed = std::move(moves->placed);
    layout.needs_all_readers_out = true;
    layout.copies = std::move(moves->copies);
    layout.copied = std::move(moves->copied);
    layout.set_header(std::move(*header), moves->after.data_at);
    std::ranges::sort(layout.placed, {}, [](const auto& placed) { return placed.file_range.offset; });
    if (gap_bytes > kMostStepBytes) layout.given_back = layout.fillers;
    now_ = std::move(moves->after);
    return std::optional(std::move(layout));
  }

  [[nodiscard]] ArchiveEdit take_edit() && { return std::move(edit_); }
  [[nodiscard]] std::uint64_t size_bytes() const { return now_.size_bytes; }
  [[nodiscard]] std::vector<ByteRange> fillers() const {
    std::vector<ByteRange> all;
    for (const Block& block : now_.blocks) {
      if (block.is_filler) all.push_back(block.range);
    }
    return all;
  }
  /// Returns the size of all gaps, including fillers that stay.
  [[nodiscard]] std::uint64_t gap_bytes() const {
    std::uint64_t total = 0;
    for (const Gap& gap : gaps_of(now_)) total += gap.size_bytes();
    for (const Block& block : now_.blocks) total += block.is_filler ? block.range.size_bytes : 0;
    return total;
  }
  /// Returns the size of the next gap that is filled; 0 if a step frees its disk space.
  [[nodiscard]] std::uint64_t kept_gap_bytes() const {
    const std::uint64_t gap_bytes = first_gap_bytes(now_);
    return gap_bytes > kMostStepBytes ? 0 : gap_bytes;
  }

 private:
  explicit Compaction(const ArchiveVersion& version) : edit_(edit_of(version)) {
    now_.data_at = version.data_offset();
    now_.size_bytes = version.stamp.size_bytes;
    for (std::uint32_t at = 0; at < edit_.tensors.size(); ++at) {
      const ByteRange range = version.file_range(*edit_.tensors[at].from);
      if (range.empty()) continue;
      now_.blocks.push_back(
          {{at, range}, std::max<std::uint64_t>(bits_of(edit_.tensors[at].dtype) / 8, 1), false});
    }
    now_.sort();
  }

  /// Removes the parts of fillers that are in the header's place.
  static void cut_fillers_below(Arrangement& arrangement) {
    const std::uint64_t data_at = arrangement.data_at;
    std::erase_if(arrangement.blocks,
                  [&](const Block& block) { return block.is_filler && block.range.end() <= data_at; });
    for (Block& block : arrangement.blocks) {
      if (block.is_filler && block.range.offset < data_at)
        block.range = {data_at, block.range.end() - data_at};
    }
  }

  /// Moves the first tensors to the end, through the journal: the header has no room for the digits of other
  /// places.
  [[nodiscard]] Result<Moves> make_room(std::uint64_t least_bytes) const {
    Moves moves{.after = now_, .copies = {}, .placed = {}};
    Arrangement& after = moves.after;
    const std::uint64_t room_bytes = kHeaderRoomBytes + kRoomPerTensorBytes * now_.blocks.size();
    const auto data_at = data_offset_with_room(least_bytes, room_bytes);
    RETURN_IF_ERROR(data_at);
    after.data_at = *data_at;
    cut_fillers_below(after);
    std::uint64_t end = std::max(now_.size_bytes, after.data_at);
    for (std::size_t at = 0; at < after.blocks.size(); ++at) {
      const Block& block = after.blocks[at];
      if (block.range.offset >= after.data_at) break;
      moves.move(at, block.place_from(end));
      end = block.range.end();
    }
    after.sort();
    after.size_bytes = end;
    return moves;
  }

  [[nodiscard]] Result<FormattedHeader> format(const Arrangement& arrangement) const {
    std::vector<TensorAt> placed;
    placed.reserve(arrangement.blocks.size());
    for (const Block& block : arrangement.blocks) {
      if (!block.is_filler) placed.push_back(block);
    }
    return format_edit_header(edit_, placed, arrangement.data_at, arrangement.size_bytes);
  }

  ArchiveEdit edit_;
  Arrangement now_;
  Gaps gaps_ = Gaps::All;
};

/// Counts tensors that move through the journal twice: they are written twice.
std::uint64_t bytes_written_by(const EditLayout& layout) {
  std::uint64_t total = 0;
  for (const EditLayout::Copy& copy : layout.copies) total += copy.size_bytes;
  for (const EditLayout::Placed& placed : layout.placed) total += 2 * placed.file_range.size_bytes;
  return total;
}

}  // namespace

Result<CompactionForecast> forecast_compaction(const ArchiveVersion& version, Gaps gaps,
                                               const PlanningEffort::Check& check) {
  return guard_memory([&]() -> Result<CompactionForecast> {
    CompactionForecast forecast;
    auto compaction = Compaction::of(version, {});
    RETURN_IF_ERROR(compaction);
    if (gaps == Gaps::Cheap) {
      RETURN_IF_ERROR(compaction->leave_costly(check));
      forecast.left = compaction->fillers();
    }
    PlanningEffort effort(check);
    for (;;) {
      auto layout = compaction->next(effort);
      RETURN_IF_ERROR(layout);
      if (!*layout) break;
      ++forecast.steps;
      const std::uint64_t moved_bytes = bytes_written_by(**layout);
      forecast.moved_bytes += moved_bytes;
      // The header is also written to the journal.
      const std::uint64_t needed_bytes =
          std::max(moved_bytes + 2 * (*layout)->header.size(), compaction->kept_gap_bytes());
      forecast.needed_bytes = std::max(forecast.needed_bytes, needed_bytes);
    }
    const std::uint64_t before_bytes = version.stamp.size_bytes;
    forecast.freed_bytes = before_bytes - std::min(before_bytes, compaction->size_bytes());
    forecast.left_bytes = compaction->gap_bytes();
    return forecast;
  });
}

Result<std::optional<CompactionStep>> next_compaction_step(const ArchiveVersion& version,
                                                           std::span<const ByteRange> left,
                                                           const PlanningEffort::Check& check) {
  return guard_memory([&]() -> Result<std::optional<CompactionStep>> {
    auto compaction = Compaction::of(version, left);
    RETURN_IF_ERROR(compaction);
    PlanningEffort effort(check);
    auto layout = compaction->next(effort);
    RETURN_IF_ERROR(layout);
    if (!*layout) return std::optional<CompactionStep>();
    return std::optional(CompactionStep{std::move(*compaction).take_edit(), std::move(**layout)});
  });
}

Result<void> check_alone(const Archive& archive, bool uses_locks) {
  if (!uses_locks || !archive.has_other_readers()) return {};
  const auto reader = archive.other_reader();
  return fail(ErrorCode::Busy, EBUSY,
              fmt::format("{}: {} has the archive open, and finds its tensors where they are: end it first",
                          archive.path().string(),
                          reader ? fmt::format("process {}", *reader) : "another process, or a mount,"));
}

Result<bool> compact_once(Archive& archive, const CommitOptions& options, std::span<const ByteRange> left) {
  const auto version = archive.version();
  const auto check = [&options] { return options.on_copy ? options.on_copy(0) : Result<void>(); };
  auto step = next_compaction_step(*version, left, check);
  if (!step) return tl::unexpected(std::move(step).error().within(archive.path().string()));
  if (!*step) return false;
  RETURN_IF_ERROR(archive.open_for_writing());
  RETURN_IF_ERROR(check_alone(archive, options.uses_locks));
  Transaction transaction(archive);
  RETURN_IF_ERROR(transaction.edit(std::move((*step)->edit), std::move((*step)->layout)));
  ReaderWriterLock lock;  // this process has no readers of the archive
  auto done = transaction.commit(options, [&lock](TensorId) -> ReaderWriterLock& { return lock; });
  RETURN_IF_ERROR(done);
  archive.end_move();
  return true;
}

Result<void> close_cheap_gaps(Archive& archive, const CompactionForecast& forecast,
                              const CommitOptions& options) {
  for (std::uint64_t step = 0; step < forecast.steps; ++step) {
    const auto done = compact_once(archive, options, forecast.left);
    RETURN_IF_ERROR(done);
    if (!*done) break;
  }
  return {};
}

}  // namespace stfs
