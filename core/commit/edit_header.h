// The header of an archive whose tensors an edit or a compaction has placed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/archive_edit.h"

namespace stfs {

inline constexpr std::uint64_t kHeaderRoomBytes = 64 * 1024;  // for later edits

/// Where the data begin, at a page, behind a header of least_bytes that also has room. HeaderTooLarge
/// (EFBIG).
Result<std::uint64_t> data_offset_with_room(std::uint64_t least_bytes, std::uint64_t room_bytes);

/// A tensor with bytes.
struct TensorAt {
  std::uint32_t tensor = 0;  // position in the edit
  ByteRange range;           // absolute
};

struct EditHeader {
  std::string json;  // without padding
  /// Of all gaps: absolute, ascending.
  std::vector<ByteRange> fillers;
};

/// Formats the header, with a filler for each gap between data_at and `end`. It may be larger than data_at.
/// @param placed  all tensors that have bytes, ascending. Those that are left out are empty.
/// @return the errors of format_header_json().
Result<EditHeader> format_edit_header(const ArchiveEdit& edit, std::span<const TensorAt> placed,
                                      std::uint64_t data_at, std::uint64_t end);

}  // namespace stfs
