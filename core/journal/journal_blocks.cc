#include "core/journal/journal_blocks.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "core/journal/byte_patch.h"
#include "core/journal/journal_apply.h"

namespace stfs {
namespace {

/// A disk writes a sector whole or not at all.
constexpr std::size_t kSectorBytes = 512;

/// A block of the archive, and the new block that the journal has for it.
struct BlockPair {
  std::array<std::byte, kBlockBytes> there{};
  std::array<std::byte, kBlockBytes> promised{};
  std::size_t size_bytes = 0;

  [[nodiscard]] std::span<std::byte> archive_bytes() { return std::span(there).first(size_bytes); }
  [[nodiscard]] std::span<std::byte> new_bytes() { return std::span(promised).first(size_bytes); }

  /// Returns true if the archive's block has at least one sector of the new block.
  [[nodiscard]] bool has_new_sector() const {
    for (std::size_t at = 0; at < size_bytes; at += kSectorBytes) {
      const std::size_t size = std::min(kSectorBytes, size_bytes - at);
      if (std::memcmp(there.data() + at, promised.data() + at, size) == 0) return true;
    }
    return false;
  }
  /// Puts a length where the archive's first block has kNoHeaderLength.
  /// @return false if it has another.
  [[nodiscard]] bool put_length(std::span<const std::byte> length) {
    if (!std::ranges::equal(std::span(there).first(kNoHeaderLength.size()), kNoHeaderLength)) return false;
    std::ranges::copy(length, there.begin());
    return true;
  }
  [[nodiscard]] std::uint64_t hash() const { return XXH3_64bits(there.data(), size_bytes); }
};

std::array<std::byte, kNoHeaderLength.size()> length_bytes(std::uint64_t header_size_bytes) {
  std::array<std::byte, kNoHeaderLength.size()> bytes{};
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<std::byte>(header_size_bytes >> (8 * at));
  }
  return bytes;
}

enum class BlockState : std::uint8_t { Old, New, Torn, Other };

/// Judges a block whose bytes are neither the old block nor the new one.
/// @param is_first  the block is the first one of an archive that is being edited.
Result<BlockState> judge(const File& archive, std::uint64_t archive_offset, const File& journal,
                         std::uint64_t journal_offset, std::uint64_t old_hash, const JournalRecord& record,
                         std::uint64_t size_bytes, bool is_first) {
  BlockPair block;
  block.size_bytes = static_cast<std::size_t>(size_bytes);
  RETURN_IF_ERROR(archive.read(block.archive_bytes(), archive_offset));
  RETURN_IF_ERROR(journal.read(block.new_bytes(), journal_offset));
  auto before = block;
  if (is_first && before.put_length(length_bytes(record.archive.header_size_bytes))) {
    if (before.hash() == old_hash) return BlockState::Old;
    static_cast<void>(block.put_length(std::span(block.promised).first(kNoHeaderLength.size())));
    if (block.there == block.promised) return BlockState::New;
  }
  return block.has_new_sector() ? BlockState::Torn : BlockState::Other;
}

/// The result of a comparison.
struct Findings {
  bool has_old = false;
  bool has_new = false;
  bool has_torn = false;
  bool has_other = false;
};

/// Compares the parts of a patch's range. If a part is neither old nor new, and applying the patch makes it
/// the new content, a power loss has torn the write.
Result<void> compare_patch(const File& archive, const File& journal, const JournalRange& range,
                           std::vector<std::byte>& region, Findings& findings) {
  auto patch = read_patch(journal, range, region);
  RETURN_IF_ERROR(patch);
  std::array<std::byte, kBlockBytes> block{};
  for (std::size_t position = 0; position < patch->parts(); ++position) {
    const BytePatch::Part part = patch->part(position);
    const auto bytes = std::span(block).first(static_cast<std::size_t>(part.range.size_bytes));
    RETURN_IF_ERROR(archive.read(bytes, part.range.offset));
    const auto hash = [&] { return XXH3_64bits(bytes.data(), bytes.size()); };
    const std::uint64_t there = hash();
    if (there == part.old_hash || there == part.new_hash) {
      // Skip a part that the commit does not change.
      if (part.old_hash != part.new_hash)
        (there == part.old_hash ? findings.has_old : findings.has_new) = true;
      continue;
    }
    patch->apply(bytes, part.range.offset);
    (hash() == part.new_hash ? findings.has_torn : findings.has_other) = true;
  }
  return {};
}

/// Returns true if applying the record can leave a file of this size.
bool is_size_possible(const JournalRecord& record, std::uint64_t size_bytes) {
  if (!record.after) return true;  // each range is checked
  const auto [least, most] = std::minmax(record.archive.size_bytes, record.after->size_bytes);
  return size_bytes >= least && size_bytes <= most;
}

}  // namespace

ByteRange blocks_with_old_content(const JournalRecord& record, ByteRange range) {
  if (!record.after || range.end() <= record.archive.size_bytes) return range;
  const std::uint64_t end = round_down_to_block(record.archive.size_bytes);
  return {range.offset, end > range.offset ? end - range.offset : 0};
}

Result<KnownBlocks> compare_blocks(const File& archive, const File& journal, const JournalRecord& record) {
  auto archive_bytes = archive.size_bytes();
  RETURN_IF_ERROR(archive_bytes);
  if (!is_size_possible(record, *archive_bytes)) return KnownBlocks::Other;
  Findings findings;
  auto& [has_old, has_new, has_torn, has_other] = findings;
  std::vector<std::byte> region;
  for (const JournalRange& range : record.ranges) {
    const ByteRange compared = blocks_with_old_content(record, range.archive);
    if (compared.empty()) continue;
    if (compared.end() > *archive_bytes) return KnownBlocks::Other;
    archive.forget(compared);
    if (range.is_patch()) {
      auto done = compare_patch(archive, journal, range, region, findings);
      if (!done && done.error().code == ErrorCode::InvalidArgument) return KnownBlocks::Other;
      RETURN_IF_ERROR(done);
      if (has_other) return KnownBlocks::Other;
      continue;
    }
    auto hashes = hash_blocks(archive, compared);
    RETURN_IF_ERROR(hashes);
    auto old_hashes = range.old_offset == 0 ? Result<std::vector<std::uint64_t>>(range.old_hashes)
                                            : hash_blocks(journal, {range.old_offset, compared.size_bytes});
    RETURN_IF_ERROR(old_hashes);
    for (std::size_t block = 0; block < hashes->size(); ++block) {
      const std::uint64_t hash = (*hashes)[block];
      const bool is_old = hash == (*old_hashes)[block];
      const bool is_new = hash == range.new_hashes[block];
      // A block that the commit does not change is neither old nor new.
      has_old = has_old || (is_old && !is_new);
      has_new = has_new || (is_new && !is_old);
      if (is_old || is_new) continue;
      const std::uint64_t at = block * kBlockBytes;
      auto judged = judge(archive, range.archive.offset + at, journal, range.journal_offset + at,
                          (*old_hashes)[block], record, std::min(kBlockBytes, compared.size_bytes - at),
                          record.after && range.archive.offset + at == 0);
      RETURN_IF_ERROR(judged);
      if (*judged == BlockState::Other) return KnownBlocks::Other;
      has_old = has_old || *judged == BlockState::Old;
      has_new = has_new || *judged == BlockState::New;
      has_torn = has_torn || *judged == BlockState::Torn;
    }
  }
  if (has_torn) return KnownBlocks::Torn;
  if (has_old && has_new) return KnownBlocks::Mixed;
  return has_old ? KnownBlocks::AllOld : KnownBlocks::AllNew;
}

}  // namespace stfs
