// Two heads to a lane; the archive's blocks tell what was never committed.
#include "core/standing_scan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/journal_apply.h"
#include "core/journal_scan.h"

namespace stfs {
namespace {

std::optional<JournalRecord> record_in(std::string_view head_block) {
  const auto head = decode_head(head_block);
  if (!head) return std::nullopt;
  const auto place = ByteRange::checked(head->record.offset, head->record.size_bytes);
  if (!place || place->end() > head_block.size()) return std::nullopt;
  auto record = decode_sealed_record(head_block.substr(place->offset, place->size_bytes), *head,
                                     kStandingBytes, kStandingHeads);
  if (!record) return std::nullopt;
  return std::move(*record);
}

}  // namespace

Result<std::vector<JournalRecord>> read_lanes(const File& file) {
  std::vector<JournalRecord> records;
  std::string heads(kStandingHeads.size_bytes, '\0');
  if (auto read = file.read(std::as_writable_bytes(std::span(heads)), kStandingHeads.offset); !read) {
    return pass_on(std::move(read));
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const auto block = [&](std::size_t place) {
      return std::string_view(heads).substr(place * kBlockBytes, kBlockBytes);
    };
    auto record = record_in(block(lane));
    if (!record) record = record_in(block(kLanes + lane));
    if (record) records.push_back(std::move(*record));
  }
  std::ranges::sort(records, std::ranges::greater{}, &JournalRecord::sequence);
  return records;
}

std::size_t lane_of(const JournalRecord& record) {
  return !record.ranges.empty() && record.ranges.front().journal_offset < kStandingHeads.offset ? 0 : 1;
}

Result<LaneVerdict> judge_lane(const File& file, const JournalRecord& record, const File& archive) {
  auto agrees = check_new_blocks(file, record);
  if (agrees) return LaneVerdict::Sound;
  if (agrees.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(agrees));
  for (const JournalRange& range : record.ranges) {
    auto hashes = hash_blocks(archive, range.archive);
    if (!hashes) return pass_on(std::move(hashes));
    if (*hashes != range.old_hashes) return LaneVerdict::Damaged;
  }
  return LaneVerdict::Torn;
}

}  // namespace stfs
