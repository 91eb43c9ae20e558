#include "tests/support/plain_record.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "tests/support/mutator.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

}  // namespace

std::uint64_t hash_of(View bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::optional<std::vector<std::uint64_t>> block_hashes(View bytes, ByteRange range) {
  if (!has_room(bytes, range.offset, range.size_bytes)) return std::nullopt;
  std::vector<std::uint64_t> hashes;
  for (View rest = bytes.subspan(range.offset, range.size_bytes); !rest.empty();) {
    const View block = rest.first(std::min<std::size_t>(rest.size(), kBlockBytes));
    hashes.push_back(hash_of(block));
    rest = rest.subspan(block.size());
  }
  return hashes;
}

std::uint64_t version_at(View journal, std::uint64_t head_at) {
  return static_cast<std::uint32_t>(number_at(journal, head_at + head_field::kVersion));
}

std::string encode_plain_record(const JournalRecord& record, std::uint64_t version) {
  constexpr std::size_t kTypeBytes = 8;
  std::string text = encode_beginning(record);
  for (const JournalRange& range : record.ranges)
    text += encode_range(range).substr(version < 4 ? kTypeBytes : 0);
  return text;
}

std::optional<PlainRecord> read_plain_record(View bytes, std::uint64_t version, bool may_edit) {
  PlainRecord plain;
  JournalRecord& record = plain.record;
  std::uint64_t at = 0;
  const auto next = [&] { return number_at(bytes, std::exchange(at, at + 8)); };
  const auto next_short = [&] {
    return static_cast<std::uint32_t>(number_at(bytes, std::exchange(at, at + 4)));
  };
  if (!has_room(bytes, 0, kFixedRecordBytes)) return std::nullopt;
  for (std::uint8_t& byte : record.id.bytes) byte = std::to_integer<std::uint8_t>(bytes[at++]);
  record.archive.device = next();
  record.archive.inode = next();
  record.archive.birth_ns = static_cast<std::int64_t>(next());
  record.archive.size_bytes = next();
  record.archive.header_size_bytes = next();
  record.archive.header_hash = next();
  record.sequence = next();
  record.owner_pid = static_cast<std::int32_t>(next_short());
  const std::uint64_t group_record_bytes = next_short();
  if (!has_room(bytes, at, group_record_bytes + 4)) return std::nullopt;
  for (; record.group_record.size() < group_record_bytes; ++at) {
    record.group_record += static_cast<char>(bytes[at]);
  }
  constexpr std::uint32_t kMostRanges = 1U << 26U;
  std::uint32_t ranges = next_short();
  if (ranges > kMostRanges) return std::nullopt;
  const std::uint32_t operations = ranges;
  for (; ranges > 0; --ranges) {
    JournalRange range;
    if (version >= 4) {
      if (!has_room(bytes, at, 8)) return std::nullopt;
      const std::uint64_t type = next();
      if (type == 2 && ranges == operations && may_edit) {
        if (!has_room(bytes, at, 24)) return std::nullopt;
        ArchiveShape& shape = record.after.emplace();
        shape.size_bytes = next();
        shape.header_size_bytes = next();
        shape.header_hash = next();
        if (shape.size_bytes < 8 || shape.header_size_bytes > shape.size_bytes - 8) return std::nullopt;
        continue;
      }
      if (type == 3 && may_edit && ranges + (record.after ? 1 : 0) == operations) {
        if (!has_room(bytes, at, 40)) return std::nullopt;
        FileReplacement& index = record.index.emplace();
        index.in_journal.offset = next();
        index.in_journal.size_bytes = next();
        index.new_hash = next();
        index.old_hash = next();
        const std::uint64_t name_bytes = next();
        if (name_bytes > 255 || !has_room(bytes, at, name_bytes)) return std::nullopt;
        for (; index.name.size() < name_bytes; ++at) index.name += static_cast<char>(bytes[at]);
        continue;
      }
      if (type == 4 && may_edit && !record.after) {
        if (!has_room(bytes, at, 40)) return std::nullopt;
        range.type = OperationType::PatchBytes;
        range.archive.offset = next();
        range.archive.size_bytes = next();
        range.journal_offset = next();
        range.patch_size_bytes = next();
        range.patch_hash = next();
        record.ranges.push_back(std::move(range));
        continue;
      }
      plain.has_unknown_type = type != 1;
      if (plain.has_unknown_type) break;
    }
    if (!has_room(bytes, at, 32)) return std::nullopt;
    range.archive.offset = next();
    range.archive.size_bytes = next();
    range.journal_offset = next();
    range.old_offset = next();
    const std::uint64_t blocks = blocks_of(range.archive.size_bytes);
    const std::uint64_t hashes = range.old_offset == 0 ? 2 : 1;
    if (blocks > (bytes.size() - at) / (8 * hashes)) return std::nullopt;
    for (std::uint64_t block = 0; block < blocks; ++block) range.new_hashes.push_back(next());
    for (std::uint64_t block = 0; hashes == 2 && block < blocks; ++block) range.old_hashes.push_back(next());
    record.ranges.push_back(std::move(range));
  }
  plain.size_bytes = at;
  return plain;
}

std::optional<std::vector<std::string>> read_plain_group_record(View bytes) {
  constexpr std::size_t kHashBytes = 8;
  if (bytes.size() <= kGroupMagic.size() + kHashBytes) return std::nullopt;
  const View text = bytes.first(bytes.size() - kHashBytes);
  if (number_at(bytes, text.size()) != hash_of(text) || text.back() != std::byte{0}) return std::nullopt;
  std::vector<std::string> names(1);
  for (const std::byte byte : text.first(text.size() - 1)) {
    if (byte == std::byte{0}) {
      names.emplace_back();
    } else {
      names.back() += static_cast<char>(byte);
    }
  }
  if (names.front() != kGroupMagic) return std::nullopt;
  names.erase(names.begin());
  const auto is_name = [](const std::string& name) {
    return name.starts_with('.') && name.find('/') == std::string::npos;
  };
  return std::ranges::all_of(names, is_name) ? std::optional(std::move(names)) : std::nullopt;
}

}  // namespace stfs::test
