// Implements the table of core/journal/journal_verdict.h a second time.
#include "tests/support/journal_oracle.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tests/support/plain_blocks.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

constexpr std::string_view kMagicText = "STFSJRNL";

/// Of at most a block.
bool is_zero(View bytes) {
  static constexpr std::array<std::byte, kBlockBytes> kZeros{};
  return is_same(bytes, std::span(kZeros).first(bytes.size()));
}

enum class HeadKind { Damaged, OtherVersion, Sound };

struct Head {
  HeadKind kind = HeadKind::Damaged;
  std::uint64_t version = 0;
  ByteRange record = {};
  std::uint64_t record_hash = 0;
  Boot boot = {};
  bool tells_numbers = false;  // has a file's numbers; another file's, because the seeds have none
};

/// Two numbers and their hash, or zeros.
constexpr ByteRange kOwnNumbers{104, 16};

Head read_head(View block) {
  if (block.size() < head_field::kEnd) return {};
  if (!is_same(block.first(kMagicText.size()), std::as_bytes(std::span(kMagicText)))) return {};
  const std::uint64_t version = version_at(block, 0);
  if (version < 2 || version > 4) return {.kind = HeadKind::OtherVersion};
  const std::uint64_t hash_at = version == 2 ? head_field::kHashOfVersion2 : head_field::kHash;
  if (number_at(block, hash_at) != hash_of(block.first(hash_at))) return {};
  Head head{
      .kind = HeadKind::Sound,
      .version = version,
      .record = {number_at(block, head_field::kRecordOffset), number_at(block, head_field::kRecordSize)},
      .record_hash = number_at(block, head_field::kRecordHash)};
  if (block.size() >= kOwnNumbers.end() + 8) {
    const View numbers = block.subspan(kOwnNumbers.offset, kOwnNumbers.size_bytes);
    const bool has_hash = number_at(block, kOwnNumbers.end()) != 0;
    head.tells_numbers = !is_zero(numbers);
    if ((head.tells_numbers || has_hash) && number_at(block, kOwnNumbers.end()) != hash_of(numbers))
      return {};
  }
  if (version == 2) return head;
  for (std::size_t at = 0; at < head.boot.id.size(); ++at) {
    head.boot.id[at] = std::to_integer<std::uint8_t>(block[head_field::kBoot + at]);
  }
  head.boot.host = number_at(block, head_field::kHost);
  return head;
}

/// Every range is at an allowed place in the archive, after the range before it.
/// @param rooms  parts of the journal in which new bytes may be.
bool makes_sense(const JournalRecord& record, std::span<const ByteRange> rooms) {
  std::uint64_t end_of_last = 0;
  const std::uint64_t archive_bytes = record.after ? record.after->size_bytes : record.archive.size_bytes;
  for (const JournalRange& range : record.ranges) {
    const ByteRange archive = range.archive;
    const bool is_patch = range.type == OperationType::PatchBytes;
    const std::uint64_t size_bytes = archive.size_bytes;
    constexpr std::uint64_t kMostPatched = std::uint64_t{4} << 20U;
    if (is_patch && (size_bytes > kMostPatched || range.patch_size_bytes == 0 ||
                     range.patch_size_bytes > 2 * kMostPatched))
      return false;
    if (size_bytes == 0 || (!is_patch && archive.offset % kBlockBytes != 0) ||
        range.journal_offset % kBlockBytes != 0) {
      return false;
    }
    if (size_bytes > archive_bytes || archive.offset > archive_bytes - size_bytes) {
      return false;
    }
    const std::uint64_t stored_bytes = is_patch ? range.patch_size_bytes : size_bytes;
    const auto lies_in_room = [&](std::uint64_t offset) {
      return std::ranges::any_of(rooms, [&](ByteRange room) {
        return offset % kBlockBytes == 0 && offset >= room.offset && stored_bytes <= room.size_bytes &&
               offset - room.offset <= room.size_bytes - stored_bytes;
      });
    };
    if (!lies_in_room(range.journal_offset)) return false;
    // Only a journal whose head is its first block has old blocks.
    if (range.old_offset != 0 && (rooms.front().offset != kBlockBytes || !lies_in_room(range.old_offset)))
      return false;
    const std::uint64_t end = archive.offset + size_bytes;
    if (!is_patch && end % kBlockBytes != 0 && end != archive_bytes) return false;
    if (archive.offset < end_of_last) return false;
    end_of_last = end;
  }
  return true;
}

/// No byte of the journal is part of two patches.
bool has_separate_patches(const JournalRecord& record) {
  for (const JournalRange& one : record.ranges) {
    for (const JournalRange& other : record.ranges) {
      const bool are_two = &one != &other && one.type == OperationType::PatchBytes && other.type == one.type;
      if (are_two && one.journal_offset < other.journal_offset + other.patch_size_bytes &&
          other.journal_offset < one.journal_offset + one.patch_size_bytes)
        return false;
    }
  }
  return true;
}

/// The first range has the new header, with its length.
bool begins_with_header(const JournalRecord& record) {
  return !record.ranges.empty() && record.ranges[0].archive.offset == 0 &&
         record.ranges[0].archive.size_bytes >= 8;
}

/// The ranges write each block that the edit adds to the archive.
bool writes_what_it_adds(const JournalRecord& record) {
  std::uint64_t block = blocks_of(record.archive.size_bytes);
  for (const JournalRange& range : record.ranges) {
    const std::uint64_t first = range.archive.offset / kBlockBytes;
    const std::uint64_t end = first + blocks_of(range.archive.size_bytes);
    if (end <= block) continue;
    if (first > block) return false;
    block = end;
  }
  return block >= blocks_of(record.after->size_bytes);
}

/// The new index, if there is one, is in the journal.
bool has_sensible_index(const JournalRecord& record, ByteRange room) {
  if (!record.index) return true;
  const ByteRange place = record.index->in_journal;
  return place.size_bytes > 0 && place.size_bytes <= (std::uint64_t{256} << 20U) &&
         place.offset % kBlockBytes == 0 && place.offset >= room.offset &&
         place.size_bytes <= room.size_bytes &&
         place.offset - room.offset <= room.size_bytes - place.size_bytes &&
         (record.after ? record.index->name.size() <= 255 && record.index->name.ends_with(".index.json") &&
                             record.index->name.find_first_of(std::string_view("/\0", 2)) == std::string::npos
                       : record.index->name == ".weight_sync/state.json");
}

struct SealedRecord {
  std::optional<JournalRecord> record = {};
  bool is_other_version = false;
};

/// The record of a sound head, if the record is sound.
/// @param bytes  contain the record: the whole journal, or the head's block.
SealedRecord sealed_record(View bytes, View head_block, const Head& head, ByteRange room) {
  if (head.kind == HeadKind::OtherVersion) return {.is_other_version = true};
  if (head.kind != HeadKind::Sound || !has_room(bytes, head.record.offset, head.record.size_bytes)) return {};
  const View place = bytes.subspan(head.record.offset, head.record.size_bytes);
  if (hash_of(place) != head.record_hash) return {};
  const bool is_in_lane = room.offset != kBlockBytes;
  auto plain = read_plain_record(place, head.version, !is_in_lane);
  if (!plain || plain->record.group_record.size() > kBlockBytes) return {};
  if (plain->has_unknown_type) {
    // The ranges before the unknown operation must be sound. In a lane journal, their new bytes may be in
    // either lane.
    const ByteRange behind = {kLaneHeads.end(), kLaneJournalBytes - kLaneHeads.end()};
    const std::array lanes = {ByteRange{0, kLaneHeads.offset}, behind};
    const bool is_lane = bytes.data() == head_block.data() && bytes.size() == head_block.size() &&
                         room.size_bytes == kLaneBytes && room.offset != kBlockBytes;
    const std::array rooms = {room};
    const bool is_sound = is_lane ? makes_sense(plain->record, lanes) : makes_sense(plain->record, rooms);
    return {.is_other_version = is_sound && has_sensible_index(plain->record, room)};
  }
  if (plain->size_bytes != place.size()) return {};
  constexpr std::uint64_t kIdBytes = 16;
  if (!is_same(place.first(kIdBytes), head_block.subspan(head_field::kId, kIdBytes))) return {};
  if (!makes_sense(plain->record, std::array{room}) || !has_separate_patches(plain->record)) return {};
  if (!has_sensible_index(plain->record, room)) return {};
  const bool is_edit = plain->record.after.has_value();
  if (is_edit && !(begins_with_header(plain->record) && writes_what_it_adds(plain->record))) return {};
  plain->record.boot = head.boot;
  if (head.tells_numbers) plain->record.own.inode = UINT64_MAX;
  return {.record = std::move(plain->record)};
}

bool has_both_births(const ArchiveStamp& ours, const ArchiveStamp& archive) {
  return ours.birth_ns != 0 && archive.birth_ns != 0;
}

/// True if the stamp is, or may be, the archive's.
bool is_of(const ArchiveStamp& ours, const ArchiveStamp& archive) {
  const bool is_alike = ours.size_bytes == archive.size_bytes &&
                        ours.header_size_bytes == archive.header_size_bytes &&
                        ours.header_hash == archive.header_hash;
  if (!has_both_births(ours, archive)) return is_alike;
  return is_alike && ours.inode == archive.inode && ours.birth_ns == archive.birth_ns;
}

/// True if the record is, or may be, the archive's. An edit changes all fields of the stamp except for the
/// file's identity.
bool is_of(const JournalRecord& record, const ArchiveStamp& archive) {
  if (!record.after) return is_of(record.archive, archive);
  if (!has_both_births(record.archive, archive)) return true;
  return record.archive.inode == archive.inode && record.archive.birth_ns == archive.birth_ns;
}

bool is_other_boot(const Boot& boot, const JournalSetting& setting) {
  return boot.id != Boot{}.id && boot.id != setting.boot.id;
}

bool is_lost_with_boot(const Boot& boot, const JournalSetting& setting) {
  return is_other_boot(boot, setting) && (boot.host == 0 || boot.host == setting.boot.host);
}

enum class Fate { Applied, Lost, Doubtful };

/// The fate of a sound record. Compares the archive's blocks if the stamp and the boot do not decide.
Fate fate_of(View journal, const JournalSetting& setting, const JournalRecord& record) {
  const bool is_other = is_other_boot(record.boot, setting);
  if (!record.after && has_both_births(record.archive, setting.stamp) && !is_other) return Fate::Applied;
  const auto [has_new, has_old, has_torn, has_strange] =
      compare_plain_blocks(setting.archive, journal, record);
  if (is_lost_with_boot(record.boot, setting)) {
    return has_new && has_old && !has_torn && !has_strange ? Fate::Applied : Fate::Lost;
  }
  const bool may_be_torn = !is_other && record.archive.inode == setting.stamp.inode;
  return has_strange || (has_torn && !may_be_torn) ? Fate::Doubtful : Fate::Applied;
}

/// The verdict on a record that was written for another archive, or for another state of this archive.
JournalVerdict judge_foreign(View journal, const JournalSetting& setting, const JournalRecord& record) {
  JournalVerdict verdict{.state = JournalState::Foreign};
  const bool is_due = setting.is_forced && record.group_record.empty();
  if (is_due && has_only_its_blocks(setting.archive, journal, record) && has_new_blocks(journal, record)) {
    verdict.after = applied(journal, setting.archive, record);
  }
  return verdict;
}

/// True for the bytes of a whole group record with another word in the place of the magic.
bool is_group_record_of_other_version(View bytes) {
  constexpr std::size_t kHashBytes = 8;
  if (bytes.size() <= kGroupMagic.size() + kHashBytes) return false;
  const View text = bytes.first(bytes.size() - kHashBytes);
  if (number_at(bytes, text.size()) != hash_of(text) || text.back() != std::byte{0}) return false;
  const View magic = std::as_bytes(std::span(kGroupMagic));
  return !is_same(text.first(magic.size()), magic) || text[magic.size()] != std::byte{0};
}

bool is_name_of_group(std::string_view name) {
  return name.starts_with('.') && name.ends_with(".group") && name.find('/') == std::string_view::npos;
}

/// The owner revokes a group record by zeroing its first byte. A loss of power can leave the record empty.
bool is_absent(std::string_view group_record, const JournalSetting& setting) {
  const bool is_there = setting.group_record && group_record == setting.group_record_name;
  return !is_there || setting.group_record->empty() || setting.group_record->front() == std::byte{0};
}

/// The verdict on a journal that waits for a group record; nothing if the group record has committed it.
std::optional<JournalVerdict> judge_part(const JournalRecord& record, const JournalSetting& setting,
                                         const JournalVerdict& lost) {
  if (!is_name_of_group(record.group_record))
    return JournalVerdict{.state = JournalState::Unknown, .blocks_commits = true};
  if (is_absent(record.group_record, setting)) return JournalVerdict{.state = JournalState::Unfinished};
  const auto names = read_plain_group_record(*setting.group_record);
  if (names && std::ranges::count(*names, setting.name) != 0) return std::nullopt;
  const bool is_lost = is_lost_with_boot(record.boot, setting);
  if (is_lost && !is_group_record_of_other_version(*setting.group_record)) return lost;
  return JournalVerdict{.state = JournalState::Damaged, .blocks_commits = true};
}

JournalVerdict judge_ordinary(View journal, const JournalSetting& setting) {
  const JournalVerdict damaged{.state = JournalState::Damaged, .blocks_commits = true};
  const View block = journal.first(std::min<std::size_t>(journal.size(), kBlockBytes));
  if (block.size() < kBlockBytes) {
    return is_zero(block) ? JournalVerdict{.state = JournalState::Unfinished} : damaged;
  }
  const Head head = read_head(block);
  const JournalVerdict unknown{.state = JournalState::Unknown, .blocks_commits = true};
  if (head.kind == HeadKind::OtherVersion) return unknown;
  // A record names each block of the archive at most once, with two hashes.
  constexpr std::uint64_t kMostGroupRecordBytes = 4096;
  const bool is_too_long =
      head.record.size_bytes > kFixedRecordBytes + kMostGroupRecordBytes + 32 + 48 + 255 +
                                   blocks_of(setting.stamp.size_bytes + head.record.offset) * 56;
  // The removal of a void journal also removes a group record that names no other journal.
  const auto names = setting.group_record ? read_plain_group_record(*setting.group_record) : std::nullopt;
  const bool is_named = names && std::ranges::count(*names, setting.name) != 0;
  const JournalVerdict lost{.state = JournalState::Unfinished, .is_part = is_named};
  auto sealed = sealed_record(journal, block, head, {kBlockBytes, journal.size() - kBlockBytes});
  if (is_too_long) sealed = {};
  if (sealed.is_other_version) return unknown;
  const auto& record = sealed.record;
  if (!record && is_zero(block)) return lost;
  if (!record) return is_lost_with_boot(head.boot, setting) ? lost : damaged;
  if (!is_of(*record, setting.stamp)) {
    const bool is_in_vain =
        is_name_of_group(record->group_record) && is_absent(record->group_record, setting);
    return is_in_vain ? JournalVerdict{.state = JournalState::Unfinished}
                      : judge_foreign(journal, setting, *record);
  }
  if (record->own != FileNumbers{}) return unknown;
  if (!has_new_blocks(journal, *record)) return is_lost_with_boot(record->boot, setting) ? lost : damaged;
  if (!record->group_record.empty()) {
    const auto waiting = judge_part(*record, setting, lost);
    if (waiting) return *waiting;
  }
  const Fate fate = fate_of(journal, setting, *record);
  if (fate == Fate::Lost) return lost;
  if (fate == Fate::Doubtful) {
    // The file is the same, so another program has changed its header.
    if (record->after && has_both_births(record->archive, setting.stamp))
      return judge_foreign(journal, setting, *record);
    return {.state = JournalState::Foreign, .blocks_commits = true};
  }
  return {.state = JournalState::Committed,
          .after = applied(journal, setting.archive, *record),
          .is_part = !record->group_record.empty()};
}

JournalVerdict judge_lanes(View journal, const JournalSetting& setting) {
  if (journal.empty()) return {.state = JournalState::Unfinished};
  if (journal.size() != kLaneJournalBytes) return {.state = JournalState::Damaged, .blocks_commits = true};
  std::vector<JournalRecord> records;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const ByteRange room{lane == 0 ? 0 : kLaneHeads.end(), kLaneBytes};
    bool is_other_version = false;
    std::optional<JournalRecord> record;
    for (const std::size_t copy : {lane, kLanes + lane}) {
      const View block = journal.subspan(kLaneHeadAt[copy], kBlockBytes);
      auto sealed = sealed_record(block, block, read_head(block), room);
      is_other_version = is_other_version || sealed.is_other_version;
      if (!record) record = std::move(sealed.record);
    }
    if (!record && is_other_version) return {.state = JournalState::Unknown, .blocks_commits = true};
    if (record) records.push_back(std::move(*record));
  }
  if (records.size() == kLanes && records[0].sequence < records[1].sequence)
    std::swap(records[0], records[1]);
  for (const JournalRecord& record : records) {
    if (!is_of(record.archive, setting.stamp)) return judge_foreign(journal, setting, record);
    if (record.own != FileNumbers{}) return {.state = JournalState::Unknown, .blocks_commits = true};
    if (has_new_blocks(journal, record)) {
      if (!record.group_record.empty()) return {.state = JournalState::Unknown, .blocks_commits = true};
      const Fate fate = fate_of(journal, setting, record);
      if (fate == Fate::Lost) continue;
      if (fate == Fate::Doubtful) return {.state = JournalState::Foreign, .blocks_commits = true};
      return {.state = JournalState::Committed, .after = applied(journal, setting.archive, record)};
    }
    if (!has_old_blocks(setting.archive, record) && !is_lost_with_boot(record.boot, setting)) {
      return {.state = JournalState::Damaged, .blocks_commits = true};
    }
  }
  return {.state = JournalState::Unfinished};
}

}  // namespace

JournalVerdict judge_journal(View journal, const JournalSetting& setting) {
  return setting.is_lane_journal ? judge_lanes(journal, setting) : judge_ordinary(journal, setting);
}

}  // namespace stfs::test
