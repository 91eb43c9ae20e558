#include "tests/support/plain_blocks.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/support/plain_patch.h"
#include "tests/support/plain_record.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

/// The number of bytes of the range with old content. Blocks that the archive did not have in full before an
/// edit have none.
std::uint64_t old_bytes_of(const JournalRecord& record, const JournalRange& range) {
  const std::uint64_t before = record.archive.size_bytes;
  if (!record.after || range.archive.end() <= before) return range.archive.size_bytes;
  const std::uint64_t whole = before / kBlockBytes * kBlockBytes;
  return whole > range.archive.offset ? whole - range.archive.offset : 0;
}

bool has_possible_size(View archive, const JournalRecord& record) {
  if (!record.after) return true;
  const auto [least, most] = std::minmax(record.archive.size_bytes, record.after->size_bytes);
  return archive.size() >= least && archive.size() <= most;
}

/// A copy of an archive's first block with another header length.
Bytes with_length(View block, View length) {
  Bytes other(block.begin(), block.end());
  std::ranges::copy(length, other.begin());
  return other;
}

/// While an edit is applied, the first block has an invalid header length. Its other bytes are the old or the
/// new ones.
enum class Hidden { No, Old, New, Other };
Hidden hidden_block(View there, View promised, std::uint64_t old_hash, const JournalRecord& record) {
  Bytes length(8);
  const Bytes hidden(8, std::byte{0xff});
  if (!is_same(there.first(8), View(hidden))) return Hidden::No;
  for (std::size_t at = 0; at < 8; ++at) {
    length[at] = static_cast<std::byte>(record.archive.header_size_bytes >> (8 * at));
  }
  if (hash_of(with_length(there, length)) == old_hash) return Hidden::Old;
  return is_same(View(with_length(there, promised.first(8))), promised) ? Hidden::New : Hidden::Other;
}

}  // namespace

bool has_new_blocks(View journal, const JournalRecord& record) {
  if (record.index) {
    const ByteRange place = record.index->in_journal;
    if (hash_of(journal.subspan(place.offset, place.size_bytes)) != record.index->new_hash) return false;
  }
  return std::ranges::all_of(record.ranges, [&](const JournalRange& range) {
    if (range.type == OperationType::PatchBytes) return read_plain_patch(journal, range).has_value();
    return block_hashes(journal, {range.journal_offset, range.archive.size_bytes}) == range.new_hashes;
  });
}

bool has_old_blocks(View archive, const JournalRecord& record) {
  return std::ranges::all_of(record.ranges, [&](const JournalRange& range) {
    return block_hashes(archive, range.archive) == range.old_hashes;
  });
}

bool has_only_its_blocks(View archive, View journal, const JournalRecord& record) {
  if (!has_possible_size(archive, record)) return false;
  return std::ranges::all_of(record.ranges, [&](const JournalRange& range) {
    if (range.type == OperationType::PatchBytes) {
      const auto patch = read_plain_patch(journal, range);
      return patch && range.archive.end() <= archive.size() &&
             std::ranges::all_of(patch->parts, [&](const PlainPatch::Part& part) {
               const std::uint64_t hash = hash_of(archive.subspan(part.range.offset, part.range.size_bytes));
               return hash == part.old_hash || hash == part.new_hash;
             });
    }
    const std::uint64_t size_bytes = old_bytes_of(record, range);
    if (size_bytes == 0) return true;
    const auto there = block_hashes(archive, {range.archive.offset, size_bytes});
    if (!there) return false;
    const auto old = range.old_offset == 0 ? std::optional(range.old_hashes)
                                           : block_hashes(journal, {range.old_offset, size_bytes});
    for (std::size_t block = 0; block < there->size(); ++block) {
      if ((*there)[block] == (*old)[block] || (*there)[block] == range.new_hashes[block]) continue;
      if (!record.after || range.archive.offset + block != 0) return false;
      const std::uint64_t size = std::min<std::uint64_t>(kBlockBytes, size_bytes);
      const Hidden hidden = hidden_block(archive.first(size), journal.subspan(range.journal_offset, size),
                                         (*old)[block], record);
      if (hidden != Hidden::Old && hidden != Hidden::New) return false;
    }
    return true;
  });
}

PlainFindings compare_plain_blocks(View archive, View journal, const JournalRecord& record) {
  PlainFindings found{.has_strange = !has_possible_size(archive, record)};
  auto& [has_new, has_old, has_torn, has_strange] = found;
  for (const JournalRange& range : record.ranges) {
    if (range.type == OperationType::PatchBytes) {
      const auto patch = read_plain_patch(journal, range);
      for (const PlainPatch::Part& part : patch->parts) {
        const View there = archive.subspan(part.range.offset, part.range.size_bytes);
        const bool is_new = hash_of(there) == part.new_hash;
        const bool is_old = hash_of(there) == part.old_hash;
        has_new = has_new || (is_new && !is_old);
        has_old = has_old || (is_old && !is_new);
        if (is_new || is_old) continue;
        const bool is_torn = hash_of(patched(*patch, there, part.range.offset)) == part.new_hash;
        (is_torn ? has_torn : has_strange) = true;
      }
      continue;
    }
    const std::uint64_t old_bytes = has_strange ? 0 : old_bytes_of(record, range);
    const auto old = range.old_offset == 0 ? std::optional(range.old_hashes)
                                           : block_hashes(journal, {range.old_offset, old_bytes});
    for (std::uint64_t at = 0, block = 0; at < old_bytes; at += kBlockBytes, ++block) {
      const std::uint64_t size = std::min<std::uint64_t>(kBlockBytes, old_bytes - at);
      const View there = archive.subspan(range.archive.offset + at, size);
      const View promised = journal.subspan(range.journal_offset + at, size);
      const bool is_new = hash_of(there) == range.new_hashes[block];
      const bool is_old = hash_of(there) == (*old)[block];
      has_new = has_new || (is_new && !is_old);
      has_old = has_old || (is_old && !is_new);
      if (is_new || is_old) continue;
      Bytes seen(there.begin(), there.end());
      if (record.after && range.archive.offset + at == 0) {
        const Hidden hidden = hidden_block(there, promised, (*old)[block], record);
        has_old = has_old || hidden == Hidden::Old;
        has_new = has_new || hidden == Hidden::New;
        if (hidden == Hidden::Old || hidden == Hidden::New) continue;
        if (hidden == Hidden::Other) seen = with_length(there, promised.first(8));
      }
      bool is_torn = false;
      for (std::uint64_t sector = 0; sector < size; sector += 512) {
        const std::uint64_t length = std::min<std::uint64_t>(512, size - sector);
        is_torn = is_torn || is_same(View(seen).subspan(sector, length), promised.subspan(sector, length));
      }
      (is_torn ? has_torn : has_strange) = true;
    }
  }
  return found;
}

Bytes applied(View journal, View archive, const JournalRecord& record) {
  Bytes after(archive.begin(), archive.end());
  if (record.after) after.resize(record.after->size_bytes);
  for (const JournalRange& range : record.ranges) {
    if (range.type == OperationType::PatchBytes) {
      after = patched(*read_plain_patch(journal, range), after, 0);
      continue;
    }
    std::memcpy(after.data() + range.archive.offset, journal.data() + range.journal_offset,
                range.archive.size_bytes);
  }
  return after;
}

}  // namespace stfs::test
