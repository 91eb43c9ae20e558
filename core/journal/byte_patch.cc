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
/// A gap that is not longer costs more as a gap of its own than as bytes.
constexpr std::size_t kJoinedGapBytes = 2;
constexpr std::size_t kMostNumberBytes = 4;  // of a number below 2^28

std::size_t parts_of(ByteRange range) {
  return (round_up_to_block(range.end()) - round_down_to_block(range.offset)) / kBlockBytes;
}

/// The part of the range in the block at that position.
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

/// The first position from `at` on where both differ; the size if there is none.
std::size_t next_difference(std::span<const std::byte> before, std::span<const std::byte> after,
                            std::size_t at) {
  for (; at + kWordBytes <= before.size(); at += kWordBytes) {
    std::uint64_t left = 0;
    std::uint64_t right = 0;
    std::memcpy(&left, before.data() + at, kWordBytes);
    std::memcpy(&right, after.data() + at, kWordBytes);
    if (left == right) continue;
    static_assert(std::endian::native == std::endian::little);
    return at + static_cast<std::size_t>(std::countr_zero(left ^ right)) / 8;
  }
  while (at < before.size() && before[at] == after[at]) ++at;
  return at;
}

/// Whether no byte of two words is the same.
bool is_all_different(const std::byte* before, const std::byte* after) {
  std::uint64_t left = 0;
  std::uint64_t right = 0;
  std::memcpy(&left, before, kWordBytes);
  std::memcpy(&right, after, kWordBytes);
  const std::uint64_t bits = left ^ right;
  return ((bits - 0x0101010101010101U) & ~bits & 0x8080808080808080U) == 0;
}

/// The end of the run of differences that begins at `at`. Short gaps belong to the run.
std::size_t end_of_run(std::span<const std::byte> before, std::span<const std::byte> after, std::size_t at) {
  std::size_t end = at + 1;
  while (end + kWordBytes <= before.size() && is_all_different(before.data() + end, after.data() + end)) {
    end += kWordBytes;
  }
  for (std::size_t next = end; next < before.size() && next <= end + kJoinedGapBytes; ++next) {
    if (before[next] != after[next]) end = next + 1;
  }
  return end;
}

struct Entry {
  std::size_t offset = 0;  // in the range
  std::span<const std::byte> bytes;
};

/// Walks over entries.
class EntryReader {
 public:
  explicit EntryReader(std::span<const std::byte> in) : in_(in) {}

  /// Nothing at the end, and where the entries are damaged.
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
  /// Where the last entry ends in the range.
  [[nodiscard]] std::size_t end() const { return end_; }

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
  std::size_t end_ = 0;
};

}  // namespace

bool encode_patch(ByteRange range, std::span<const std::byte> before, std::span<const std::byte> after,
                  std::vector<std::byte>& region) {
  std::size_t at = next_difference(before, after, 0);
  if (at == before.size()) return false;
  const std::size_t parts = parts_of(range);
  // An entry is hardly longer than the bytes that it stands for, with the gap before it.
  region.resize(2 * kPartHashBytes * parts + before.size() + before.size() / 1024 + 4 * kMostNumberBytes);
  for (std::size_t position = 0; position < parts; ++position) {
    const ByteRange part = part_of(range, position);
    const std::size_t offset = part.offset - range.offset;
    put_u64(XXH3_64bits(after.data() + offset, part.size_bytes), region.data() + kPartHashBytes * position);
    put_u64(XXH3_64bits(before.data() + offset, part.size_bytes),
            region.data() + kPartHashBytes * (parts + position));
  }
  std::byte* out = region.data() + 2 * kPartHashBytes * parts;
  std::size_t last_end = 0;
  while (at < before.size()) {
    const std::size_t end = end_of_run(before, after, at);
    out = put_number(at - last_end, out);
    out = put_number(end - at, out);
    std::memcpy(out, after.data() + at, end - at);
    out += end - at;
    last_end = end;
    at = next_difference(before, after, end);
  }
  region.resize(static_cast<std::size_t>(out - region.data()));
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
  const ByteRange wanted{offset, to.size()};
  EntryReader entries(entries_);
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

Result<void> BytePatch::for_each_run(const std::function<Result<void>(ByteRange run)>& changed) const {
  ByteRange run;
  EntryReader entries(entries_);
  while (const auto entry = entries.next()) {
    const std::uint64_t begin = range_.offset + entry->offset;
    const std::uint64_t first_block = round_down_to_block(begin);
    const std::uint64_t end = round_up_to_block(begin + entry->bytes.size());
    if (!run.empty() && first_block <= run.end()) {
      run.size_bytes = std::max(run.end(), end) - run.offset;
      continue;
    }
    if (!run.empty()) {
      if (auto done = changed(range_.intersection(run)); !done) return done;
    }
    run = {first_block, end - first_block};
  }
  return run.empty() ? Result<void>{} : changed(range_.intersection(run));
}

Result<BytePatch> read_patch(const File& journal, const JournalRange& range, std::vector<std::byte>& region) {
  region.resize(static_cast<std::size_t>(range.patch_size_bytes));
  if (auto read = journal.read(region, range.journal_offset); !read) return pass_on(std::move(read));
  if (XXH3_64bits(region.data(), region.size()) != range.patch_hash) {
    return damaged("the hash of a patch does not match");
  }
  return BytePatch::decode(range.archive, region);
}

}  // namespace stfs
