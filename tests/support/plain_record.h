// The bytes of a journal, read and written a second time: by the text of core/journal/journal_format.h,
// without its code.
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

/// A head's fields, each at its place; the record's place counts from the head's beginning.
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

/// Where the heads of lane 0 and 1 of a lane journal lie, and then their copies.
inline constexpr std::uint64_t kLaneHeadAt[] = {16 * kBlockBytes, 17 * kBlockBytes, 18 * kBlockBytes,
                                                19 * kBlockBytes};

std::uint64_t hash_of(std::span<const std::byte> bytes);
/// Of each block of the range; nothing where the bytes end before it does.
std::optional<std::vector<std::uint64_t>> block_hashes(std::span<const std::byte> bytes, ByteRange range);

/// A record as it lies there, sensible or not.
struct PlainRecord {
  JournalRecord record;
  std::uint64_t size_bytes = 0;
  /// The operation behind the last range is of no known type: nothing behind it can be read.
  bool has_unknown_type = false;
};
/// Nothing where the bytes end too early.
/// @param version  of the head. Version 4 added the type of each operation.
/// @param may_edit  whether it may begin with operations of types 2 and 3: not in a lane.
std::optional<PlainRecord> read_plain_record(std::span<const std::byte> bytes, std::uint64_t version,
                                             bool may_edit = true);
/// The version that the head at that place names.
std::uint64_t version_at(std::span<const std::byte> journal, std::uint64_t head_at);
/// Encodes a record as programs of that version do.
std::string encode_plain_record(const JournalRecord& record, std::uint64_t version);

/// The names in a group record (core/journal/group_record.h); nothing where it is damaged.
std::optional<std::vector<std::string>> read_plain_group_record(std::span<const std::byte> bytes);

/// Of a record without group record and operations.
inline constexpr std::uint64_t kFixedRecordBytes = 84;
inline constexpr std::string_view kGroupMagic = "STFSGRP1";

inline bool has_room(std::span<const std::byte> bytes, std::uint64_t offset, std::uint64_t size_bytes) {
  return offset <= bytes.size() && size_bytes <= bytes.size() - offset;
}
inline std::uint64_t blocks_of(std::uint64_t size_bytes) {
  return size_bytes / kBlockBytes + (size_bytes % kBlockBytes != 0 ? 1 : 0);
}

}  // namespace stfs::test
