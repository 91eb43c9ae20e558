// Reads both copies of each lane's head. The archive's blocks show which commit was never finished.
#include "core/journal/lane_scan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/journal/journal_apply.h"
#include "core/journal/journal_scan.h"

namespace stfs {
namespace {

/// Returns the place of the new bytes of a lane's commit.
constexpr ByteRange room_of(std::size_t lane) {
  return {lane == 0 ? 0 : kLaneHeads.end(), kLaneBytes};
}

/// Returns nothing if the block holds no sound record. EPROTONOSUPPORT: another version wrote the record.
Result<std::optional<JournalRecord>> record_in(std::string_view head_block, std::size_t lane) {
  std::optional<JournalRecord> nothing;
  const auto head = decode_head(head_block);
  if (!head && head.error().errno_value == EPROTONOSUPPORT) return tl::unexpected(head.error());
  if (!head) return nothing;
  const auto place = ByteRange::checked(head->record.offset, head->record.size_bytes);
  if (!place || place->end() > head_block.size()) return nothing;
  auto record = decode_sealed_record(head_block.substr(place->offset, place->size_bytes), *head,
                                     kLaneJournalBytes, kLaneHeads);
  if (!record && record.error().errno_value == EPROTONOSUPPORT) return tl::unexpected(record.error());
  if (!record) return nothing;
  // Recovery makes the other lane void first, so a record must not name bytes outside its own lane.
  const auto is_inside = [room = room_of(lane)](const JournalRange& range) {
    return room.contains({range.journal_offset, range.archive.size_bytes});
  };
  if (!std::ranges::all_of(record->ranges, is_inside)) return nothing;
  return std::optional(std::move(*record));
}

}  // namespace

Result<std::vector<JournalRecord>> read_lanes(const File& file) {
  std::vector<JournalRecord> records;
  std::string heads(kLaneHeads.size_bytes, '\0');
  RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span(heads)), kLaneHeads.offset));
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const auto block = [&](std::size_t place) {
      return std::string_view(heads).substr(place * kBlockBytes, kBlockBytes);
    };
    auto record = record_in(block(lane), lane);
    if (!record || !*record) {
      auto copy = record_in(block(kLanes + lane), lane);
      // Prefer the copy if it has a record or an unknown version. An empty second copy proves nothing: an
      // unknown version in the first one is then reported.
      if (!copy || *copy) record = std::move(copy);
    }
    RETURN_IF_ERROR(record);
    if (*record) records.push_back(std::move(**record));
  }
  std::ranges::sort(records, std::ranges::greater{}, &JournalRecord::sequence);
  return records;
}

std::size_t lane_of(const JournalRecord& record) {
  return !record.ranges.empty() && record.ranges.front().journal_offset < kLaneHeads.offset ? 0 : 1;
}

Result<LaneVerdict> judge_lane(const File& file, const JournalRecord& record, const File& archive) {
  auto agrees = check_new_blocks(file, record);
  if (agrees) return LaneVerdict::Sound;
  if (agrees.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(agrees));
  for (const JournalRange& range : record.ranges) {
    auto hashes = hash_blocks(archive, range.archive);
    RETURN_IF_ERROR(hashes);
    if (*hashes != range.old_hashes) return LaneVerdict::Damaged;
  }
  return LaneVerdict::Torn;
}

}  // namespace stfs
