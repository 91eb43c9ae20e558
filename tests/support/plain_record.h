// A second reader and writer of journals, by the text of core/journal/journal_format.h and without its code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/journal/journal_format.h"

namespace stfs::test {

/// The offsets of a head's fields. The record's offset is relative to the beginning of its head.
namespace head_field {
inline constexpr std::uint64_t kVersion = 8;
inline constexpr std::uint64_t kId = 12;
inline constexpr std::uint64_t kRecordOffset = 28;
inline constexpr std::uint64_t kRecordSize = 36;
inline constexpr std::uint64_t kRecordHash = 44;
inline constexpr std::uint64_t kHashOfVersion2 = 52;
inline constexpr std::uint64_t kBoot = 52;
inline constexpr std::uint64_t kHost = 68;
inline constexpr std::uint64_t kHash = 76;
inline constexpr std::uint64_t kEnd = 84;
}  // namespace head_field

/// The offsets in a lane journal: the heads of lanes 0 and 1, then the copies of these heads.
inline constexpr std::uint64_t kLaneHeadAt[] = {16 * kBlockBytes, 17 * kBlockBytes, 18 * kBlockBytes,
                                                19 * kBlockBytes};

std::uint64_t hash_of(std::span<const std::byte> bytes);
/// The hash of each block of the range; nothing if the bytes end before the range.
std::optional<std::vector<std::uint64_t>> block_hashes(std::span<const std::byte> bytes, ByteRange range);

/// A record as it is stored, sensible or not.
struct PlainRecord {
  JournalRecord record;
  std::uint64_t size_bytes = 0;
  /// The operation after the last range has an unknown type, so nothing after it can be read.
  bool has_unknown_type = false;
};
/// Nothing if the bytes end too early.
/// @param version  of the head. Version 4 added the type of each operation.
/// @param may_edit  allows operations of types 2 and 3 at the beginning; false for a lane.
std::optional<PlainRecord> read_plain_record(std::span<const std::byte> bytes, std::uint64_t version,
                                             bool may_edit = true);
/// The version in the head at that offset.
std::uint64_t version_at(std::span<const std::byte> journal, std::uint64_t head_at);
/// Encodes a record in the format of that version.
std::string encode_plain_record(const JournalRecord& record, std::uint64_t version);

/// The names in a group record (core/journal/group_record.h); nothing if the record is damaged.
std::optional<std::vector<std::string>> read_plain_group_record(std::span<const std::byte> bytes);

/// The size of a record without a group record and operations.
inline constexpr std::uint64_t kFixedRecordBytes = 84;
inline constexpr std::string_view kGroupMagic = "STFSGRP1";

inline bool has_room(std::span<const std::byte> bytes, std::uint64_t offset, std::uint64_t size_bytes) {
  return offset <= bytes.size() && size_bytes <= bytes.size() - offset;
}
inline std::uint64_t blocks_of(std::uint64_t size_bytes) {
  return size_bytes / kBlockBytes + (size_bytes % kBlockBytes != 0 ? 1 : 0);
}

}  // namespace stfs::test
