// Compares eight bytes at a time: most of them are equal.
#include "core/journal/byte_patch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "core/base/xxh3.h"

namespace stfs {
namespace {

constexpr std::size_t kPartHashBytes = 8;
constexpr std::size_t kWordBytes = 8;
/// A gap up to this size costs more as an entry's gap than as copied bytes.
constexpr std::size_t kJoinedGapBytes = 2;
constexpr std::size_t kMostNumberBytes = 4;  // of a number below 2^28

std::size_t parts_of(ByteRange range) {
  return (round_up_to_block(range.end()) - round_down_to_block(range.offset)) / kBlockBytes;
}

/// Returns the part of the range in the block at that position.
ByteRange part_of(ByteRange range, std::size_t position) {
  const std::uint64_t block = round_down_to_block(range.offset) + position * kBlockBytes;
  return range.intersection({block, kBlockBytes});
}

void put_u64(std::uint64_t value, std::byte* to) {
  for (std::size_t at = 0; at < kPartHashBytes; ++at) to[at] = static_cast<std::byte>(value >> (8 * at));
}
std::uint64_t u64_at(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t at = 0; at < kPartHashBytes; ++at) {
    value |= std::uint64_t{std::to_integer<std::uint8_t>(bytes[offset + at])} << (8 * at);
  }
  return value;
}

std::byte* put_number(std::size_t value, std::byte* to) {
  for (; value >= 0x80; value >>= 7U) *to++ = static_cast<std::byte>(value | 0x80U);
  *to++ = static_cast<std::byte>(value);
  return to;
}

std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, kWordBytes);
  return word;
}

/// Calls on_run(begin, end) for each run of differences. A run includes short gaps.
template <class OnRun>
void for_each_difference(std::span<const std::byte> before, std::span<const std::byte> after,
                         const OnRun& on_run) {
  std::size_t begin = 0;
  std::size_t end = 0;  // the end of the last run; 0: there is none
  const auto add = [&](std::size_t first, std::size_t behind) {
    if (end == 0 || first > end + kJoinedGapBytes) {
      if (end != 0) on_run(begin, end);
      begin = first;
    }
    end = behind;
  };
  std::size_t at = 0;
  for (; at + kWordBytes <= before.size(); at += kWordBytes) {
    std::uint64_t bits = word_at(before, at) ^ word_at(after, at);
    if (bits == 0) continue;
    static_assert(std::endian::native == std::endian::little);
    const bool are_all_different = ((bits - 0x0101010101010101U) & ~bits & 0x8080808080808080U) == 0;
    if (are_all_different) {
      add(at, at + kWordBytes);
      continue;
    }
    while (bits != 0) {
      const auto byte = static_cast<std::size_t>(std::countr_zero(bits)) / 8;
      add(at + byte, at + byte + 1);
      bits &= ~(std::uint64_t{0xff} << (8 * byte));
    }
  }
  for (; at < before.size(); ++at) {
    if (before[at] != after[at]) add(at, at + 1);
  }
  if (end != 0) on_run(begin, end);
}

struct Entry {
  std::size_t offset = 0;  // in the range
  std::span<const std::byte> bytes;
};

/// Walks over entries.
class EntryReader {
 public:
  /// @param end  the end, in the range, of the entry before the first one here.
  explicit EntryReader(std::span<const std::byte> in, std::size_t end = 0) : in_(in), end_(end) {}

  /// Returns nothing at the end, and if the entries are damaged.
  std::optional<Entry> next() {
    const auto gap = number();
    const auto size = number();
    if (!gap || !size || *size == 0 || *size > in_.size() || (*gap == 0 && end_ != 0)) return std::nullopt;
    const Entry entry{end_ + *gap, in_.first(*size)};
    end_ = entry.offset + *size;
    in_ = in_.subspan(*size);
    return entry;
  }
  [[nodiscard]] bool is_at_end() const { return in_.empty(); }
  /// The end of the last entry in the range.
  [[nodiscard]] std::size_t end() const { return end_; }
  /// The entries that were not read.
  [[nodiscard]] std::span<const std::byte> rest() const { return in_; }

 private:
  std::optional<std::size_t> number() {
    std::size_t value = 0;
    for (std::size_t at = 0; at < kMostNumberBytes && at < in_.size(); ++at) {
      const auto byte = std::to_integer<std::size_t>(in_[at]);
      value |= (byte & 0x7fU) << (7 * at);
      if (byte >= 0x80) continue;
      in_ = in_.subspan(at + 1);
      return value;
    }
    return std::nullopt;
  }

  std::span<const std::byte> in_;
  std::size_t end_;
};

}  // namespace

bool encode_patch(ByteRange range, std::span<const std::byte> before, std::span<const std::byte> after,
                  std::vector<std::byte>& region) {
  const std::size_t parts = parts_of(range);
  const std::size_t hashes = 2 * kPartHashBytes * parts;
  // An entry is hardly longer than its bytes and the gap before them.
  region.resize(hashes + before.size() + before.size() / 1024 + 4 * kMostNumberBytes);
  std::byte* out = region.data() + hashes;
  std::size_t last_end = 0;
  for_each_difference(before, after, [&](std::size_t begin, std::size_t end) {
    out = put_number(begin - last_end, out);
    out = put_number(end - begin, out);
    std::memcpy(out, after.data() + begin, end - begin);
    out += end - begin;
    last_end = end;
  });
  if (last_end == 0) return false;
  region.resize(static_cast<std::size_t>(out - region.data()));
  for (std::size_t position = 0; position < parts; ++position) {
    const ByteRange part = part_of(range, position);
    const std::size_t offset = part.offset - range.offset;
    put_u64(XXH3_64bits(after.data() + offset, part.size_bytes), region.data() + kPartHashBytes * position);
    put_u64(XXH3_64bits(before.data() + offset, part.size_bytes),
            region.data() + kPartHashBytes * (parts + position));
  }
  return true;
}

Result<BytePatch> BytePatch::decode(ByteRange range, std::span<const std::byte> region) {
  if (range.empty() || range.size_bytes > kMostPatchedBytes) return damaged("a patch's range is not valid");
  const std::size_t hashes = 2 * kPartHashBytes * parts_of(range);
  if (region.size() <= hashes) return damaged("a patch is shorter than its hashes");
  EntryReader entries(region.subspan(hashes));
  while (!entries.is_at_end()) {
    if (!entries.next() || entries.end() > range.size_bytes) return damaged("a patch's entry is not valid");
  }
  return BytePatch(range, region.first(hashes), region.subspan(hashes));
}

void BytePatch::apply(std::span<std::byte> to, std::uint64_t offset) const {
  apply(entries_, 0, to, offset);
}

void BytePatch::apply(const Run& run, std::span<std::byte> to) const {
  apply(run.entries, run.end_before, to, run.range.offset);
}

void BytePatch::apply(std::span<const std::byte> from, std::size_t end_before, std::span<std::byte> to,
                      std::uint64_t offset) const {
  const ByteRange wanted{offset, to.size()};
  EntryReader entries(from, end_before);
  while (const auto entry = entries.next()) {
    const ByteRange there{range_.offset + entry->offset, entry->bytes.size()};
    if (there.offset >= wanted.end()) return;
    const ByteRange part = there.intersection(wanted);
    if (part.empty()) continue;
    std::memcpy(to.data() + (part.offset - offset), entry->bytes.data() + (part.offset - there.offset),
                part.size_bytes);
  }
}

BytePatch::Part BytePatch::part(std::size_t position) const {
  return {.range = part_of(range_, position),
          .new_hash = u64_at(hashes_, kPartHashBytes * position),
          .old_hash = u64_at(hashes_, kPartHashBytes * (parts() + position))};
}

Result<void> BytePatch::for_each_run(const std::function<Result<void>(const Run& run)>& changed) const {
  Run run;
  std::uint64_t end_block = 0;
  const auto finish = [&] {
    run.range = range_.intersection({run.range.offset, end_block - run.range.offset});
    return changed(run);
  };
  EntryReader entries(entries_);
  for (bool is_first = true;; is_first = false) {
    const std::span<const std::byte> rest = entries.rest();
    const std::size_t end_before = entries.end();
    const auto entry = entries.next();
    if (!entry) return is_first ? Result<void>{} : finish();
    const std::uint64_t begin = range_.offset + entry->offset;
    if (!is_first && round_down_to_block(begin) > end_block) {
      RETURN_IF_ERROR(finish());
      is_first = true;
    }
    if (is_first) run = {.range = {round_down_to_block(begin), 0}, .entries = rest, .end_before = end_before};
    end_block = std::max(end_block, round_up_to_block(begin + entry->bytes.size()));
  }
}

Result<BytePatch> read_patch(const File& journal, const JournalRange& range, std::vector<std::byte>& region) {
  region.resize(static_cast<std::size_t>(range.patch_size_bytes));
  RETURN_IF_ERROR(journal.read(region, range.journal_offset));
  if (XXH3_64bits(region.data(), region.size()) != range.patch_hash) {
    return damaged("the hash of a patch does not match");
  }
  return BytePatch::decode(range.archive, region);
}

}  // namespace stfs
