#include "tests/support/plain_patch.h"

#include <algorithm>

#include "tests/support/plain_record.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

/// Reads a LEB128 number of at most four bytes, and moves `at` past it.
std::optional<std::uint64_t> number_of(View bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (unsigned digit = 0; digit < 4 && at < bytes.size(); ++digit) {
    const auto byte = std::to_integer<std::uint64_t>(bytes[at++]);
    value += (byte % 128) << (7 * digit);
    if (byte < 128) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<PlainPatch> read_plain_patch(View journal, const JournalRange& range) {
  if (!has_room(journal, range.journal_offset, range.patch_size_bytes)) return std::nullopt;
  const View region = journal.subspan(range.journal_offset, range.patch_size_bytes);
  if (hash_of(region) != range.patch_hash) return std::nullopt;
  PlainPatch patch;
  // The range may end at the largest number, so its end is not computed.
  for (std::uint64_t at = range.archive.offset, left = range.archive.size_bytes; left > 0;) {
    const std::uint64_t size = std::min(kBlockBytes - at % kBlockBytes, left);
    patch.parts.push_back({.range = {at, size}});
    at += size;
    left -= size;
  }
  const std::size_t hashes = 8 * patch.parts.size();
  if (region.size() <= 2 * hashes) return std::nullopt;
  for (std::size_t part = 0; part < patch.parts.size(); ++part) {
    patch.parts[part].new_hash = number_at(region, 8 * part);
    patch.parts[part].old_hash = number_at(region, hashes + 8 * part);
  }
  std::uint64_t end = 0;  // of the last entry, in the range
  for (std::size_t at = 2 * hashes; at < region.size();) {
    const bool is_first = at == 2 * hashes;
    const auto gap = number_of(region, at);
    const auto size = number_of(region, at);
    if (!gap || !size || *size == 0 || *size > region.size() - at) return std::nullopt;
    if (*gap == 0 && !is_first) return std::nullopt;
    if (end + *gap + *size > range.archive.size_bytes) return std::nullopt;
    for (std::uint64_t byte = 0; byte < *size; ++byte) {
      patch.bytes.push_back({.offset = range.archive.offset + end + *gap + byte, .value = region[at++]});
    }
    end += *gap + *size;
  }
  return patch;
}

Bytes patched(const PlainPatch& patch, View content, std::uint64_t offset) {
  Bytes after(content.begin(), content.end());
  for (const PlainPatch::Byte& byte : patch.bytes) {
    if (byte.offset >= offset && byte.offset - offset < after.size())
      after[byte.offset - offset] = byte.value;
  }
  return after;
}

}  // namespace stfs::test
