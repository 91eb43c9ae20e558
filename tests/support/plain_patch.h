// A patch by bytes as core/journal/byte_patch.h describes it, read without its code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/journal/journal_format.h"
#include "tests/support/mutator.h"

namespace stfs::test {

struct PlainPatch {
  /// The part of the range in one block.
  struct Part {
    ByteRange range;  // in the archive
    std::uint64_t new_hash = 0;
    std::uint64_t old_hash = 0;
  };
  struct Byte {
    std::uint64_t offset = 0;  // in the archive
    std::byte value{};
  };
  std::vector<Part> parts;
  std::vector<Byte> bytes;
};

/// Nothing if the journal's patch does not match its record, or is malformed.
std::optional<PlainPatch> read_plain_patch(std::span<const std::byte> journal, const JournalRange& range);
/// Applies the patch to the content of a part, or of the whole archive.
/// @param offset  of the content's first byte in the archive.
Bytes patched(const PlainPatch& patch, std::span<const std::byte> content, std::uint64_t offset);

}  // namespace stfs::test
