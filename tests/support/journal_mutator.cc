#include "tests/support/journal_mutator.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/journal/group_record.h"
#include "core/journal/journal_format.h"
#include "tests/support/journal_oracle.h"
#include "tests/support/journal_seeds.h"
#include "tests/support/plain_patch.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

// --- places of heads and records ------------------------------------------------------------------------

/// The offsets at which a journal can have a head.
std::span<const std::uint64_t> head_places(bool is_lane_journal) {
  static constexpr std::uint64_t kOrdinary[] = {0};
  return is_lane_journal ? std::span<const std::uint64_t>(kLaneHeadAt) : kOrdinary;
}

/// The place of the record according to the head at that offset, cut at the end of the journal.
ByteRange record_place(View journal, std::uint64_t head_at) {
  const std::uint64_t offset = head_at + number_at(journal, head_at + head_field::kRecordOffset);
  if (offset < head_at || offset > journal.size()) return {0, 0};
  const std::uint64_t size = number_at(journal, head_at + head_field::kRecordSize);
  return {offset, std::min(size, journal.size() - offset)};
}

void put_record(Bytes& journal, std::uint64_t head_at, ByteRange place, const JournalRecord& record,
                bool is_lane_journal) {
  const std::string text = encode_plain_record(record, version_at(journal, head_at));
  const std::uint64_t end = place.offset + text.size();
  const bool is_last = place.end() == journal.size();
  if (!is_lane_journal && (is_last || end > journal.size())) journal.resize(end);
  if (end > journal.size()) return;
  put_text(journal, place.offset, text);
  put_number(journal, head_at + head_field::kRecordSize, text.size());
}

// --- changes --------------------------------------------------------------------------------------------

/// A number for a field of a record: at an edge of the archive or of the journal, or an extreme one.
std::uint64_t edge(std::uint64_t now, std::uint64_t archive_bytes, std::uint64_t journal_bytes,
                   Choices& choices) {
  switch (choices.below(6)) {
    case 0: return archive_bytes - choices.below(2);
    case 1: return round_up_to_block(archive_bytes) - kBlockBytes * choices.below(3);
    case 2: return round_down_to_block(journal_bytes) - kBlockBytes * choices.below(4);
    case 3: return kBlockBytes * choices.below(40);
    default: return extreme_number(choices, now);
  }
}

void change_range(std::vector<JournalRange>& ranges, std::uint64_t archive_bytes, std::uint64_t journal_bytes,
                  Choices& choices) {
  if (ranges.empty()) return;
  const std::size_t at = choices.below(ranges.size());
  JournalRange& range = ranges[at];
  const auto new_edge = [&](std::uint64_t& number) {
    number = edge(number, archive_bytes, journal_bytes, choices);
  };
  if (range.is_patch() && choices.below(3) != 0) {
    switch (choices.below(4)) {
      case 0: range.archive.offset += choices.below(3) - 1; return;
      case 1: new_edge(range.patch_size_bytes); return;
      case 2: range.patch_hash ^= 1; return;
      default: new_edge(range.archive.size_bytes); return;
    }
  }
  switch (choices.below(10)) {
    case 0: {
      if (choices.one_in(4)) range.type = OperationType{extreme_number(choices, 1)};
      new_edge(range.archive.offset);
      return;
    }
    case 1: new_edge(range.archive.offset); return;
    case 2: {
      new_edge(range.archive.size_bytes);
      // One hash for each block of the range, but at most 64: then the record has too few.
      const std::uint64_t blocks = std::min<std::uint64_t>(range.archive.size_bytes / kBlockBytes + 1, 64);
      range.new_hashes.resize(blocks);
      if (range.old_offset == 0) range.old_hashes.resize(blocks);
      return;
    }
    case 3: new_edge(range.journal_offset); return;
    case 4: {
      new_edge(choices.below(2) == 0 ? range.journal_offset : range.old_offset);
      range.old_hashes.resize(range.old_offset == 0 ? range.new_hashes.size() : 0);
      return;
    }
    case 5: std::swap(range, ranges.back()); return;
    case 6: ranges.push_back(range); return;
    case 7: ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(at)); return;
    case 8: {
      auto& hashes = choices.below(2) == 0 ? range.new_hashes : range.old_hashes;
      if (choices.below(2) == 0) hashes.push_back(0);
      if (!hashes.empty()) hashes.pop_back();
      if (!hashes.empty() && choices.below(2) == 0) hashes[choices.below(hashes.size())] ^= 1;
      return;
    }
    default: {
      // Splits the range.
      if (range.archive.size_bytes <= kBlockBytes || range.new_hashes.size() < 2) return;
      JournalRange rest = range;
      rest.archive = {range.archive.offset + kBlockBytes, range.archive.size_bytes - kBlockBytes};
      rest.journal_offset += kBlockBytes;
      rest.new_hashes.erase(rest.new_hashes.begin());
      range.archive.size_bytes = kBlockBytes;
      range.new_hashes.resize(1);
      if (range.old_offset != 0) {
        rest.old_offset += kBlockBytes;
      } else {
        rest.old_hashes.erase(rest.old_hashes.begin());
        range.old_hashes.resize(1);
      }
      ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(rest));
      return;
    }
  }
}

void change_stamp(JournalRecord& record, Choices& choices) {
  ArchiveStamp& stamp = record.archive;
  switch (choices.below(8)) {
    case 0: stamp.device ^= 1; return;
    case 1: stamp.inode ^= 1; return;
    case 2: stamp.birth_ns = choices.below(2) == 0 ? 0 : stamp.birth_ns + 1; return;
    case 3: stamp.size_bytes = extreme_number(choices, stamp.size_bytes); return;
    case 4: stamp.header_size_bytes ^= std::uint64_t{1} << choices.below(64); return;
    case 5: stamp.header_hash ^= std::uint64_t{1} << choices.below(64); return;
    case 6: record.sequence = extreme_number(choices, record.sequence); return;
    default:
      record.group_record.assign(choices.one_in(4) ? choices.below(5000) : choices.below(3), '/');
      return;
  }
}

void change_index(std::optional<FileReplacement>& of_record, std::uint64_t archive_bytes,
                  std::uint64_t journal_bytes, Choices& choices) {
  FileReplacement& index = *of_record;
  switch (choices.below(7)) {
    case 0:
      index.in_journal.offset = edge(index.in_journal.offset, archive_bytes, journal_bytes, choices);
      return;
    case 1: index.in_journal.size_bytes = extreme_number(choices, index.in_journal.size_bytes); return;
    case 2: index.new_hash ^= 1; return;
    case 3: index.old_hash = choices.one_in(2) ? 0 : index.old_hash ^ 1; return;
    case 4:
      index.name = choices.one_in(2) ? ".weight_sync/state.json" : "other.safetensors.index.json";
      return;
    case 5: of_record.reset(); return;
    default:
      index.name.insert(choices.below(index.name.size() + 1), 1, choices.one_in(2) ? '/' : '\0');
      return;
  }
}

void change_edit(JournalRecord& record, std::uint64_t archive_bytes, std::uint64_t journal_bytes,
                 Choices& choices) {
  switch (choices.below(4)) {
    case 0:
      record.after->header_size_bytes = extreme_number(choices, record.after->header_size_bytes);
      return;
    case 1: record.after->header_hash ^= 1; return;
    case 2:
      record.after.reset();
      record.index.reset();
      return;
    default:
      record.after->size_bytes = edge(record.after->size_bytes, archive_bytes, journal_bytes, choices);
      return;
  }
}

void change_record(Bytes& journal, bool is_lane_journal, std::uint64_t archive_bytes, Choices& choices) {
  const std::uint64_t head_at = one_of(choices, head_places(is_lane_journal));
  const ByteRange place = record_place(journal, head_at);
  auto plain =
      read_plain_record(View(journal).subspan(place.offset, place.size_bytes), version_at(journal, head_at));
  if (!plain || plain->has_unknown_type) return;
  JournalRecord& record = plain->record;
  if (record.index && choices.one_in(6)) {
    change_index(record.index, archive_bytes, journal.size(), choices);
  } else if (record.after && choices.one_in(4)) {
    change_edit(record, archive_bytes, journal.size(), choices);
  } else if (choices.below(4) != 0) {
    change_range(record.ranges, archive_bytes, journal.size(), choices);
  } else {
    change_stamp(record, choices);
  }
  put_record(journal, head_at, place, record, is_lane_journal);
}

/// Damages the hashes or the entries of a patch.
void change_patch(Bytes& journal, Choices& choices) {
  const ByteRange place = record_place(journal, 0);
  const auto plain =
      read_plain_record(View(journal).subspan(place.offset, place.size_bytes), version_at(journal, 0));
  if (!plain || plain->record.ranges.empty()) return;
  const JournalRange& range = one_of(choices, plain->record.ranges);
  if (!range.is_patch() || !has_room(journal, range.journal_offset, range.patch_size_bytes)) return;
  mutate_bytes(journal, {range.journal_offset, range.patch_size_bytes}, {}, choices, false);
}

void change_head(Bytes& journal, bool is_lane_journal, Choices& choices) {
  const std::uint64_t at = one_of(choices, head_places(is_lane_journal));
  constexpr std::array kFields = {std::uint64_t{0},          head_field::kVersion,    head_field::kId,
                                  head_field::kRecordOffset, head_field::kRecordSize, head_field::kRecordHash,
                                  head_field::kHash,         head_field::kBoot,       head_field::kHost};
  const std::uint64_t field = at + one_of(choices, kFields);
  if (choices.below(2) == 0) {
    put_number(journal, field, extreme_number(choices, number_at(journal, field)),
               field == at + head_field::kVersion ? 4 : 8);
  } else {
    mutate_bytes(journal, {at, head_field::kEnd}, {}, choices, false);
  }
}

/// Damages bytes anywhere, mostly in a record.
void change_bytes(Bytes& journal, bool is_lane_journal, Choices& choices) {
  ByteRange part{0, journal.size()};
  if (!choices.one_in(4)) part = record_place(journal, one_of(choices, head_places(is_lane_journal)));
  const JournalSeed& other = one_of(choices, journal_seeds());
  mutate_bytes(journal, part, other.bytes, choices, !is_lane_journal || choices.one_in(10));
}

// --- repairs --------------------------------------------------------------------------------------------

enum class Repair { Nothing, Record, NewBlocks, OldBlocks };

/// Repairs the hash of a patch. OldBlocks also repairs the old and new hashes of its parts, so that the patch
/// fits the archive's content.
void repair_patch(Bytes& journal, JournalRange& range, View archive, Repair what) {
  if (!has_room(journal, range.journal_offset, range.patch_size_bytes)) return;
  const auto region = std::span(journal).subspan(range.journal_offset, range.patch_size_bytes);
  range.patch_hash = hash_of(region);
  if (what != Repair::OldBlocks || !has_room(archive, range.archive.offset, range.archive.size_bytes)) return;
  const auto patch = read_plain_patch(journal, range);
  if (!patch) return;
  for (std::size_t part = 0; part < patch->parts.size(); ++part) {
    const ByteRange place = patch->parts[part].range;
    const View before = archive.subspan(place.offset, place.size_bytes);
    put_number(region, 8 * part, hash_of(patched(*patch, before, place.offset)));
    put_number(region, 8 * (patch->parts.size() + part), hash_of(before));
  }
  range.patch_hash = hash_of(region);
}

void repair(Bytes& journal, bool is_lane_journal, View archive, Repair what) {
  if (what == Repair::Nothing) return;
  for (const std::uint64_t head_at : head_places(is_lane_journal)) {
    // No head is made where there is none.
    if (head_at + head_field::kEnd > journal.size() || number_at(journal, head_at) == 0) continue;
    const ByteRange place = record_place(journal, head_at);
    const std::uint64_t version = version_at(journal, head_at);
    auto plain = read_plain_record(View(journal).subspan(place.offset, place.size_bytes), version);
    if (plain && !plain->has_unknown_type && what >= Repair::NewBlocks) {
      for (JournalRange& range : plain->record.ranges) {
        if (range.is_patch()) {
          repair_patch(journal, range, archive, what);
          continue;
        }
        auto hashes = block_hashes(journal, {range.journal_offset, range.archive.size_bytes});
        if (hashes) range.new_hashes = std::move(*hashes);
        auto old = block_hashes(archive, range.archive);
        if (!old || what != Repair::OldBlocks) continue;
        if (range.old_offset == 0) {
          range.old_hashes = std::move(*old);
        } else if (block_hashes(journal, {range.old_offset, range.archive.size_bytes})) {
          std::ranges::copy(archive.subspan(range.archive.offset, range.archive.size_bytes),
                            journal.begin() + static_cast<std::ptrdiff_t>(range.old_offset));
        }
      }
      put_text(journal, place.offset, encode_plain_record(plain->record, version));  // as long as before
    }
    const std::uint64_t hash = hash_of(View(journal).subspan(place.offset, place.size_bytes));
    put_number(journal, head_at + head_field::kRecordHash, hash);
    put_number(journal, head_at + head_field::kHash,
               hash_of(View(journal).subspan(head_at, head_field::kHash)));
  }
}

}  // namespace

bool mutate_journal(Bytes& journal, bool is_lane_journal, View archive, Choices& choices) {
  for (std::size_t changes = 1 + choices.below(3); changes > 0 && !journal.empty(); --changes) {
    switch (choices.below(9)) {
      case 0: change_head(journal, is_lane_journal, choices); break;
      case 8:
        if (!is_lane_journal) change_patch(journal, choices);
        break;
      case 1:
      case 2: change_bytes(journal, is_lane_journal, choices); break;
      default: change_record(journal, is_lane_journal, archive.size(), choices); break;
    }
  }
  constexpr std::array kRepairs = {Repair::Nothing, Repair::Record, Repair::NewBlocks, Repair::NewBlocks,
                                   Repair::OldBlocks};
  const Repair what = one_of(choices, kRepairs);
  repair(journal, is_lane_journal, archive, what);
  return what != Repair::Nothing;
}

Bytes make_group_record(const std::string& journal_name, Choices& choices) {
  std::vector<std::string> names = {".first.safetensors.stj.0123456789abcdef"};
  if (!choices.one_in(6)) names.push_back(journal_name);
  if (choices.one_in(6)) names.emplace_back(kGroupRecordName);  // the record names itself
  const std::string text = encode_group_record({names});
  const View view = std::as_bytes(std::span(text));
  Bytes bytes(view.begin(), view.end());
  if (choices.one_in(8)) bytes[0] = std::byte{0};  // as if its owner had revoked it
  if (choices.below(2) == 0) return bytes;
  mutate_bytes(bytes, {0, bytes.size()}, {}, choices, true);
  constexpr std::size_t kHashBytes = 8;
  if (choices.below(2) == 0 && bytes.size() > kHashBytes) {
    const std::size_t end = bytes.size() - kHashBytes;
    put_number(bytes, end, hash_of(View(bytes).first(end)));
  }
  return bytes;
}

}  // namespace stfs::test
