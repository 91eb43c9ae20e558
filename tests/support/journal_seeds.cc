#include "tests/support/journal_seeds.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "core/journal/byte_patch.h"
#include "tests/support/archive_mutator.h"
#include "tests/support/journal_oracle.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

View view_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// A record of these blocks of the scene's archive, {first, count}.
JournalRecord record_of(std::span<const ByteRange> blocks, std::uint64_t sequence) {
  JournalRecord record;
  record.id.bytes.fill(0xab);
  record.archive = journal_scene().stamp;
  record.sequence = sequence;
  record.owner_pid = 77;
  const View archive = journal_scene().archive;
  for (const ByteRange of : blocks) {
    const std::uint64_t offset = of.offset * kBlockBytes;
    const std::uint64_t size = std::min(of.size_bytes * kBlockBytes, archive.size() - offset);
    JournalRange range;
    range.archive = {offset, size};
    range.old_hashes = *block_hashes(archive, range.archive);
    record.ranges.push_back(std::move(range));
  }
  return record;
}

/// Writes new bytes for the record's ranges into the journal, from `at` on, and their offsets and hashes into
/// the record.
void lay_blocks(Bytes& journal, JournalRecord& record, std::uint64_t at) {
  for (JournalRange& range : record.ranges) {
    range.journal_offset = at;
    for (std::uint64_t byte = 0; byte < range.archive.size_bytes; ++byte) {
      journal[at + byte] = static_cast<std::byte>((byte >> 3U) * 31 + record.sequence + (at >> 12U));
    }
    range.new_hashes = *block_hashes(journal, {at, range.archive.size_bytes});
    at += round_up_to_block(range.archive.size_bytes);
  }
}

/// A record of an edit that changes these blocks and the archive's size. Blocks past the old end have no old
/// content.
JournalRecord edit_of(std::span<const ByteRange> blocks, std::uint64_t size_after, std::uint64_t sequence) {
  JournalRecord record;
  record.id.bytes.fill(0xab);
  record.archive = journal_scene().stamp;
  record.after = {size_after, record.archive.header_size_bytes, sequence};
  record.sequence = sequence;
  record.owner_pid = 77;
  const View archive = journal_scene().archive;
  for (const ByteRange of : blocks) {
    const std::uint64_t offset = of.offset * kBlockBytes;
    JournalRange range;
    range.archive = {offset, std::min(of.size_bytes * kBlockBytes, size_after - offset)};
    const std::uint64_t blocks_in_range = (range.archive.size_bytes + kBlockBytes - 1) / kBlockBytes;
    range.old_hashes.resize(blocks_in_range);
    for (std::uint64_t block = 0; block < blocks_in_range; ++block) {
      const std::uint64_t begin = offset + block * kBlockBytes;
      const std::uint64_t size = std::min(kBlockBytes, range.archive.end() - begin);
      if (begin + size > archive.size()) continue;
      range.old_hashes[block] = hash_of(archive.subspan(begin, size));
    }
    record.ranges.push_back(std::move(range));
  }
  return record;
}

std::uint64_t room_for(const JournalRecord& record) {
  std::uint64_t size = 0;
  for (const JournalRange& range : record.ranges) size += round_up_to_block(range.archive.size_bytes);
  return size;
}

/// Appends the record to the journal, and writes the head into the first block.
Bytes sealed(Bytes journal, const JournalRecord& record) {
  const std::uint64_t end = journal.size();
  const std::string text = encode_record(record);
  journal.resize(end + text.size());
  put_text(journal, end, text);
  put_text(journal, 0, encode_head({record.id, {end, text.size()}, hash_of(view_of(text)), record.boot}));
  return journal;
}

enum class Applied { No, InPart };

/// A journal with patches after the record's blocks. The patches change a few bytes of each of these ranges
/// of the scene's archive.
/// @param is_applied  InPart: the archive has half of the changed bytes already.
Bytes with_patches(JournalRecord record, std::span<const ByteRange> ranges,
                   Applied is_applied = Applied::No) {
  Bytes journal(kBlockBytes + room_for(record));
  lay_blocks(journal, record, kBlockBytes);
  for (const ByteRange range : ranges) {
    const View there = View(journal_scene().archive).subspan(range.offset, range.size_bytes);
    Bytes before(there.begin(), there.end());
    Bytes after(there.begin(), there.end());
    constexpr std::size_t kStep = 97;
    for (std::size_t at = 0; at < after.size(); at += kStep) {
      const bool is_there = is_applied == Applied::InPart && at / kStep % 2 == 1;
      (is_there ? before : after)[at] ^= static_cast<std::byte>(1 + record.sequence);
    }
    std::vector<std::byte> region;
    if (!encode_patch(range, before, after, region)) continue;
    record.ranges.push_back({.type = OperationType::PatchBytes,
                             .archive = range,
                             .journal_offset = journal.size(),
                             .new_hashes = {},
                             .old_hashes = {},
                             .patch_size_bytes = region.size(),
                             .patch_hash = hash_of(region)});
    journal.insert(journal.end(), region.begin(), region.end());
    journal.resize(round_up_to_block(journal.size()));
  }
  if (record.index) {
    const std::string text = R"({"version":"000001"})";
    record.index->in_journal = {journal.size(), text.size()};
    record.index->new_hash = hash_of(view_of(text));
    journal.resize(journal.size() + kBlockBytes);
    put_text(journal, record.index->in_journal.offset, text);
  }
  return sealed(std::move(journal), record);
}

Bytes ordinary(JournalRecord record) {
  Bytes journal(kBlockBytes + room_for(record));
  lay_blocks(journal, record, kBlockBytes);
  return sealed(std::move(journal), record);
}

/// A journal whose new index is in its new blocks.
Bytes with_index(JournalRecord record) {
  Bytes journal(kBlockBytes + room_for(record));
  lay_blocks(journal, record, kBlockBytes);
  const ByteRange place = record.index->in_journal;
  record.index->new_hash = hash_of(View(journal).subspan(place.offset, place.size_bytes));
  return sealed(std::move(journal), record);
}

/// A journal that also contains the old blocks of its long ranges.
Bytes with_old_blocks(JournalRecord record) {
  const std::uint64_t end_of_new = kBlockBytes + room_for(record);
  Bytes journal(end_of_new + room_for(record));
  lay_blocks(journal, record, kBlockBytes);
  std::uint64_t at = end_of_new;
  for (JournalRange& range : record.ranges) {
    if (range.archive.size_bytes <= kBlockBytes) continue;
    range.old_offset = at;
    range.old_hashes.clear();
    const View old = View(journal_scene().archive).subspan(range.archive.offset, range.archive.size_bytes);
    std::ranges::copy(old, journal.begin() + static_cast<std::ptrdiff_t>(at));
    at += round_up_to_block(range.archive.size_bytes);
  }
  return sealed(std::move(journal), record);
}

void lay_lane(Bytes& journal, std::size_t lane, JournalRecord record) {
  const std::uint64_t end_of_heads = kLaneHeads.offset + kLaneHeads.size_bytes;
  lay_blocks(journal, record, lane == 0 ? kLaneHeads.offset - room_for(record) : end_of_heads);
  const std::string head = *encode_head_with(record);
  put_text(journal, kLaneHeadAt[lane], head);
  put_text(journal, kLaneHeadAt[kLanes + lane], head);
}

Bytes lane_journal_of(std::optional<JournalRecord> lane_0, std::optional<JournalRecord> lane_1) {
  Bytes journal(kLaneJournalBytes);
  if (lane_0) lay_lane(journal, 0, std::move(*lane_0));
  if (lane_1) lay_lane(journal, 1, std::move(*lane_1));
  return journal;
}

/// The journal in the format of version 3; nothing if it has no head.
std::optional<Bytes> in_version_3(Bytes journal, bool is_lane_journal) {
  constexpr std::array kOrdinary = {std::uint64_t{0}};
  const auto places = is_lane_journal ? std::span<const std::uint64_t>(kLaneHeadAt) : std::span(kOrdinary);
  bool has_head = false;
  for (const std::uint64_t at : places) {
    if (journal.size() < at + kBlockBytes || number_at(journal, at) == 0) continue;
    has_head = true;
    const std::uint64_t offset = at + number_at(journal, at + head_field::kRecordOffset);
    const std::uint64_t size = number_at(journal, at + head_field::kRecordSize);
    const auto plain = read_plain_record(View(journal).subspan(offset, size), kJournalVersion);
    // Version 3 had no edits and no patches.
    if (plain->record.after || plain->record.index ||
        std::ranges::any_of(plain->record.ranges, &JournalRange::is_patch))
      return std::nullopt;
    const std::string text = encode_plain_record(plain->record, 3);
    if (!is_lane_journal) journal.resize(offset + text.size());
    put_text(journal, offset, text);
    put_number(journal, at + head_field::kVersion, 3, 4);
    put_number(journal, at + head_field::kRecordSize, text.size());
    put_number(journal, at + head_field::kRecordHash, hash_of(view_of(text)));
    put_number(journal, at + head_field::kHash, hash_of(View(journal).subspan(at, head_field::kHash)));
  }
  return has_head ? std::optional(std::move(journal)) : std::nullopt;
}

std::vector<JournalSeed> make_seeds() {
  constexpr std::uint64_t kLast = 16;  // block of the archive, not a whole one
  const std::array one = {ByteRange{3, 1}};
  const std::array three = {ByteRange{1, 1}, ByteRange{5, 2}, ByteRange{kLast, 1}};
  const std::array header = {ByteRange{0, 1}, ByteRange{9, 1}};
  const std::array many = {ByteRange{0, kLast + 1}};
  const std::array full_lane = {ByteRange{1, 10}, ByteRange{11, 6}};
  JournalRecord foreign = record_of(three, 50);
  foreign.archive.inode += 1;
  JournalRecord foreign_with_old = foreign;
  JournalRecord part = record_of(one, 51);
  JournalRecord large_part = record_of(three, 53);
  JournalRecord earlier = record_of(three, 54);
  earlier.boot = {.id = {2}, .host = 1};
  JournalRecord other_host = record_of(three, 55);
  other_host.boot = {.id = {2}, .host = 2};
  JournalRecord unborn = record_of(three, 56);
  unborn.archive.birth_ns = 0;
  part.group_record = large_part.group_record = kGroupRecordName;
  Bytes taken_back = ordinary(record_of(three, 52));
  std::fill_n(taken_back.begin(), kBlockBytes, std::byte{0});
  const std::array grown = {ByteRange{0, 2}, ByteRange{7, 1}, ByteRange{kLast, 3}};
  const std::array cut_short = {ByteRange{0, 1}, ByteRange{11, 2}};
  JournalRecord unborn_edit = edit_of(grown, journal_scene().archive.size() + 5000, 57);
  unborn_edit.archive.birth_ns = 0;
  JournalRecord edit_with_index = edit_of(header, journal_scene().archive.size(), 58);
  edit_with_index.index = {.name = "first.safetensors.index.json", .in_journal = {kBlockBytes, 10}};
  const std::array in_a_block = {ByteRange{5000, 100}};
  const std::array sharing_blocks = {ByteRange{5000, 100}, ByteRange{5100, 4}, ByteRange{6000, 9000},
                                     ByteRange{15'000, 1}};
  const std::array over_blocks = {ByteRange{4096, 20'000},
                                  ByteRange{journal_scene().archive.size() - 900, 900}};
  JournalRecord foreign_patch = record_of({}, 61);
  foreign_patch.archive.inode += 1;
  JournalRecord patch_of_boot = record_of({}, 62);
  patch_of_boot.boot = {.id = {2}, .host = 1};
  JournalRecord unborn_patch = record_of({}, 63);
  unborn_patch.archive.birth_ns = 0;
  JournalRecord patch_with_state = record_of({}, 64);
  patch_with_state.index = {.name = std::string(kSyncStateName), .in_journal = {}};
  JournalRecord blocks_with_state = record_of(one, 68);
  blocks_with_state.index = patch_with_state.index;
  JournalRecord part_with_state = record_of({}, 69);
  part_with_state.index = patch_with_state.index;
  part_with_state.group_record = kGroupRecordName;
  JournalRecord torn_patch = record_of({}, 71);
  torn_patch.archive.birth_ns = 0;
  JournalRecord torn_patch_of_boot = record_of({}, 72);
  torn_patch_of_boot.boot = {.id = {2}, .host = 2};
  const std::array behind_a_block = {ByteRange{4 * kBlockBytes + 1, 5000}};
  std::vector<JournalSeed> seeds = {
      {"a patch in a block", false, with_patches(record_of({}, 65), in_a_block)},
      {"patches that share blocks", false, with_patches(record_of({}, 66), sharing_blocks)},
      {"patches over blocks", false, with_patches(record_of({}, 67), over_blocks)},
      {"a foreign patch", false, with_patches(std::move(foreign_patch), over_blocks)},
      {"a patch of an earlier boot", false, with_patches(std::move(patch_of_boot), sharing_blocks)},
      {"a patch without a birth time", false, with_patches(std::move(unborn_patch), over_blocks)},
      {"a patch with a sync state", false, with_patches(std::move(patch_with_state), in_a_block)},
      {"blocks with a sync state", false, with_patches(std::move(blocks_with_state), {})},
      {"a patch with a sync state, part of a whole", false,
       with_patches(std::move(part_with_state), sharing_blocks), true},
      {"a block and a patch", false, with_patches(record_of(one, 70), behind_a_block)},
      {"a torn patch without a birth time", false,
       with_patches(std::move(torn_patch), sharing_blocks, Applied::InPart)},
      {"a torn patch of another host's boot", false,
       with_patches(std::move(torn_patch_of_boot), over_blocks, Applied::InPart)},
      {"an edit that grows", false, ordinary(edit_of(grown, journal_scene().archive.size() + 5000, 59))},
      {"an edit that cuts", false, ordinary(edit_of(cut_short, 12 * kBlockBytes + 5, 60))},
      {"an edit without a birth time", false, ordinary(std::move(unborn_edit))},
      {"an edit with an index", false, with_index(std::move(edit_with_index))},
      {"one block", false, ordinary(record_of(one, 1))},
      {"three ranges", false, ordinary(record_of(three, 2))},
      {"the header", false, ordinary(record_of(header, 3))},
      {"everything", false, ordinary(record_of(many, 4))},
      {"nothing", false, ordinary(record_of({}, 5))},
      {"foreign", false, ordinary(std::move(foreign))},
      {"old blocks inside", false, with_old_blocks(record_of(three, 6))},
      {"foreign, old blocks inside", false, with_old_blocks(std::move(foreign_with_old))},
      {"part of a whole", false, ordinary(std::move(part)), true},
      {"large part of a whole", false, ordinary(std::move(large_part)), true},
      {"taken back", false, std::move(taken_back)},
      {"of an earlier boot", false, ordinary(earlier)},
      {"of another host's boot", false, ordinary(std::move(other_host))},
      {"without a birth time", false, ordinary(unborn)},
      {"empty", false, {}},
      {"a lane of an earlier boot", true, lane_journal_of(record_of(one, 17), std::move(earlier))},
      {"a lane without a birth time", true, lane_journal_of({}, std::move(unborn))},
      {"lane 0", true, lane_journal_of(record_of(three, 7), {})},
      {"lane 1", true, lane_journal_of({}, record_of(one, 8))},
      {"both lanes", true, lane_journal_of(record_of(one, 9), record_of(three, 10))},
      {"lane 0 is full", true, lane_journal_of(record_of(full_lane, 11), {})},
      {"lane 1 is full", true, lane_journal_of({}, record_of(full_lane, 12))},
      {"no lane", true, lane_journal_of({}, {})},
  };
  // The blocks of the later commit and one of its heads never reached the disk.
  Bytes torn = lane_journal_of(record_of(one, 13), record_of(three, 14));
  std::fill(torn.end() - kBlockBytes - kLaneBytes, torn.end() - kBlockBytes, std::byte{0});
  seeds.push_back({"lane 1 is torn", true, std::move(torn)});
  Bytes half = lane_journal_of(record_of(three, 16), record_of(one, 15));
  std::fill_n(half.begin() + static_cast<std::ptrdiff_t>(kLaneHeadAt[0]), kBlockBytes, std::byte{0});
  seeds.push_back({"one head of two", true, std::move(half)});
  for (std::size_t at = 0, count = seeds.size(); at < count; ++at) {
    auto bytes = in_version_3(seeds[at].bytes, seeds[at].is_lane_journal);
    if (!bytes) continue;
    seeds.push_back(
        {seeds[at].name + ", version 3", seeds[at].is_lane_journal, std::move(*bytes), seeds[at].is_part});
  }
  return seeds;
}

}  // namespace

const JournalScene& journal_scene() {
  static const JournalScene scene = [] {
    constexpr std::uint64_t kArchiveBytes = 16 * kBlockBytes + 700;
    std::vector<TensorDraft> drafts = {{"a", "F32", {100, 30}}, {"b", "U8", {7}}, {"c", "U8", {}}};
    // The last tensor takes the rest. A shape with the same number of digits changes no offset.
    drafts[2].shape = {50'000};
    const std::uint64_t size = write_archive(drafts, "", 1).size();
    drafts[2].shape = {50'000 + kArchiveBytes - size};
    JournalScene made{.archive = write_archive(drafts, "", 1), .stamp = {}};
    const std::uint64_t header_bytes = number_at(made.archive, 0);
    made.stamp = {.device = 1,
                  .inode = 1,
                  .birth_ns = 1'000'000'000,
                  .size_bytes = made.archive.size(),
                  .header_size_bytes = header_bytes,
                  .header_hash = hash_of(View(made.archive).subspan(8, header_bytes))};
    return made;
  }();
  return scene;
}

const std::vector<JournalSeed>& journal_seeds() {
  static const std::vector<JournalSeed> seeds = make_seeds();
  return seeds;
}

}  // namespace stfs::test
