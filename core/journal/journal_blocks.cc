// Compares hashes block by block, and bytes only where neither hash agrees.
#include "core/journal/journal_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "core/journal/journal_apply.h"

namespace stfs {
namespace {

/// A disk writes a sector whole or not at all.
constexpr std::size_t kSectorBytes = 512;

/// Whether the archive's block has at least one sector of the new block.
Result<bool> has_new_sector(const File& archive, std::uint64_t archive_offset, const File& journal,
                            std::uint64_t journal_offset, std::size_t size_bytes) {
  std::array<std::byte, kBlockBytes> there{};
  std::array<std::byte, kBlockBytes> promised{};
  if (auto read = archive.read(std::span(there).first(size_bytes), archive_offset); !read) {
    return pass_on(std::move(read));
  }
  if (auto read = journal.read(std::span(promised).first(size_bytes), journal_offset); !read) {
    return pass_on(std::move(read));
  }
  for (std::size_t at = 0; at < size_bytes; at += kSectorBytes) {
    const std::size_t size = std::min(kSectorBytes, size_bytes - at);
    if (std::memcmp(there.data() + at, promised.data() + at, size) == 0) return true;
  }
  return false;
}

}  // namespace

Result<KnownBlocks> compare_blocks(const File& archive, const File& journal, const JournalRecord& record) {
  auto archive_bytes = archive.size_bytes();
  if (!archive_bytes) return pass_on(std::move(archive_bytes));
  bool has_old = false;
  bool has_new = false;
  bool has_torn = false;
  for (const JournalRange& range : record.ranges) {
    if (range.archive.end() > *archive_bytes) return KnownBlocks::Other;
    archive.forget(range.archive);
    auto hashes = hash_blocks(archive, range.archive);
    if (!hashes) return pass_on(std::move(hashes));
    auto old_hashes = range.old_offset == 0
                          ? Result<std::vector<std::uint64_t>>(range.old_hashes)
                          : hash_blocks(journal, {range.old_offset, range.archive.size_bytes});
    if (!old_hashes) return pass_on(std::move(old_hashes));
    for (std::size_t block = 0; block < hashes->size(); ++block) {
      const std::uint64_t hash = (*hashes)[block];
      const bool is_old = hash == (*old_hashes)[block];
      const bool is_new = hash == range.new_hashes[block];
      // A block that the commit does not change counts as neither.
      has_old = has_old || (is_old && !is_new);
      has_new = has_new || (is_new && !is_old);
      if (is_old || is_new) continue;
      const std::uint64_t at = block * kBlockBytes;
      auto torn = has_new_sector(
          archive, range.archive.offset + at, journal, range.journal_offset + at,
          static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, range.archive.size_bytes - at)));
      if (!torn) return pass_on(std::move(torn));
      if (!*torn) return KnownBlocks::Other;
      has_torn = true;
    }
  }
  if (has_torn) return KnownBlocks::Torn;
  if (has_old && has_new) return KnownBlocks::Mixed;
  return has_old ? KnownBlocks::AllOld : KnownBlocks::AllNew;
}

}  // namespace stfs
