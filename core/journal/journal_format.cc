// Encodes and decodes the parts of a journal: little-endian, byte by byte. Every value is checked before use.
#include "core/journal/journal_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>

#include "core/base/xxh3.h"
#include "core/journal/byte_patch.h"

namespace stfs {
namespace {

constexpr std::string_view kJournalMagic = "STFSJRNL";
constexpr std::uint32_t kMaxRanges = 1U << 26U;
constexpr std::uint32_t kFirstVersionWithBoot = 3;
constexpr std::uint32_t kFirstVersionWithTypes = 4;
constexpr std::uint32_t kMaxGroupRecordBytes = 4096;
constexpr std::size_t kSecretDigits = 16;
constexpr std::uint64_t kMaxIndexNameBytes = 255;
constexpr std::string_view kIndexSuffix = ".index.json";

class Writer {
 public:
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void bytes(std::string_view value) { out_ += value; }
  void reserve(std::size_t size_bytes) { out_.reserve(size_bytes); }
  std::string take() { return std::move(out_); }

 private:
  void number(std::uint64_t value, int size) {
    for (int byte = 0; byte < size; ++byte) out_ += static_cast<char>(value >> (8 * byte));
  }
  std::string out_;
};

/// Reads past the end return zeros and make is_ok() false. Callers check once, at the end of a part.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::string_view bytes(std::size_t size) {
    if (size > in_.size()) {
      in_ = {};
      is_ok_ = false;
      return {};
    }
    const std::string_view value = in_.substr(0, size);
    in_.remove_prefix(size);
    return value;
  }
  [[nodiscard]] bool is_ok() const { return is_ok_; }
  [[nodiscard]] std::size_t left() const { return in_.size(); }

 private:
  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    const std::string_view from = bytes(size);
    for (std::size_t byte = 0; byte < from.size(); ++byte) {
      value |= std::uint64_t{static_cast<unsigned char>(from[byte])} << (8 * byte);
    }
    return value;
  }
  std::string_view in_;
  bool is_ok_ = true;
};

JournalId read_id(Reader& in) {
  JournalId id;
  const std::string_view bytes = in.bytes(id.bytes.size());
  std::ranges::copy(bytes, id.bytes.begin());
  return id;
}

std::string_view text_of(const JournalId& id) {
  return {reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}

std::uint64_t blocks_in(std::uint64_t size_bytes) {
  return round_up_to_block(size_bytes) / kBlockBytes;
}

/// Returns true if a journal can have blocks at that place.
bool has_room(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t journal_size_bytes,
              ByteRange heads) {
  const auto range = ByteRange::checked(offset, size_bytes);
  return range && offset % kBlockBytes == 0 && !range->overlaps(heads) && range->end() <= journal_size_bytes;
}

/// @param size_after  the archive's size when the record is applied.
bool is_sound(const JournalRange& range, std::uint64_t size_after, std::uint64_t journal_size_bytes,
              ByteRange heads) {
  const auto in_archive = ByteRange::checked(range.archive.offset, range.archive.size_bytes);
  if (!in_archive || in_archive->empty() || in_archive->offset % kBlockBytes != 0) return false;
  if (!has_room(range.journal_offset, in_archive->size_bytes, journal_size_bytes, heads)) return false;
  // Old blocks in a journal stay as they are when the new ones are written. A lane journal has no room
  // for them.
  if (range.old_offset != 0 &&
      (heads.offset != 0 || !has_room(range.old_offset, in_archive->size_bytes, journal_size_bytes, heads)))
    return false;
  if (in_archive->end() > size_after) return false;
  return in_archive->end() % kBlockBytes == 0 || in_archive->end() == size_after;
}
bool is_sound_patch(const JournalRange& range, std::uint64_t archive_size_bytes,
                    std::uint64_t journal_size_bytes, ByteRange heads) {
  const auto in_archive = ByteRange::checked(range.archive.offset, range.archive.size_bytes);
  return in_archive && !in_archive->empty() && in_archive->size_bytes <= kMostPatchedBytes &&
         in_archive->end() <= archive_size_bytes && range.patch_size_bytes > 0 &&
         range.patch_size_bytes <= kMostPatchBytes &&
         has_room(range.journal_offset, range.patch_size_bytes, journal_size_bytes, heads);
}

/// Returns true if no two patches share bytes of the journal. All patches together are then no longer than
/// the journal.
bool have_own_regions(std::span<const JournalRange> ranges) {
  std::vector<ByteRange> regions;
  for (const JournalRange& range : ranges) {
    if (range.is_patch()) regions.push_back({range.journal_offset, range.patch_size_bytes});
  }
  std::ranges::sort(regions, {}, &ByteRange::offset);
  const auto overlap = [](ByteRange left, ByteRange right) { return left.overlaps(right); };
  return std::ranges::adjacent_find(regions, overlap) == regions.end();
}

/// Returns true if the header fits into the archive.
bool is_sound(const ArchiveShape& shape) {
  return shape.size_bytes >= kNoHeaderLength.size() &&
         shape.header_size_bytes <= shape.size_bytes - kNoHeaderLength.size();
}
bool is_index_name(std::string_view name) {
  return name.size() <= kMaxIndexNameBytes && name.ends_with(kIndexSuffix) &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}
bool is_sound(const FileReplacement& index, bool is_edit, std::uint64_t journal_size_bytes, ByteRange heads) {
  return !index.in_journal.empty() && index.in_journal.size_bytes <= kMaxIndexBytes &&
         has_room(index.in_journal.offset, index.in_journal.size_bytes, journal_size_bytes, heads) &&
         (is_edit ? is_index_name(index.name) : index.name == kSyncStateName);
}
/// Returns true if the record's first range has the archive's header length.
bool begins_with_header(const JournalRecord& record) {
  return !record.ranges.empty() && record.ranges.front().archive.offset == 0 &&
         record.ranges.front().archive.size_bytes >= kNoHeaderLength.size();
}

tl::unexpected<Error> unsupported(const std::string& what) {
  return fail(ErrorCode::InvalidArgument, EPROTONOSUPPORT, what + ": use the version that wrote it");
}

}  // namespace

bool writes_all_growth(std::uint64_t before_bytes, std::uint64_t after_bytes,
                       std::span<const JournalRange> ranges) {
  if (after_bytes <= before_bytes) return true;
  std::uint64_t written = round_up_to_block(before_bytes);
  for (const JournalRange& range : ranges) {
    if (range.archive.end() <= written) continue;
    if (range.archive.offset > written) return false;
    written = range.archive.end();
  }
  return written >= after_bytes;
}

JournalId JournalId::random() {
  JournalId id;
  std::random_device source;
  for (std::uint8_t& byte : id.bytes) byte = static_cast<std::uint8_t>(source());
  return id;
}

std::string JournalId::text() const {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string journal_prefix(const std::string& archive_file_name) {
  // With the id and the suffix, the whole name must stay below NAME_MAX.
  constexpr std::size_t kKept = 180;
  if (archive_file_name.size() <= kKept) return fmt::format(".{}{}", archive_file_name, kJournalMark);
  return fmt::format(".{}~{:016x}{}", archive_file_name.substr(0, kKept - 17),
                     XXH3_64bits(archive_file_name.data(), archive_file_name.size()), kJournalMark);
}

std::string secret_name_part() {
  return fmt::format(".{:.{}}", JournalId::random().text(), kSecretDigits);
}

std::optional<std::string_view> without_secret(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() < suffix.size() + 1 + kSecretDigits) return std::nullopt;
  name.remove_suffix(suffix.size());
  const std::string_view secret = name.substr(name.size() - kSecretDigits);
  name.remove_suffix(kSecretDigits);
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (!name.ends_with('.') || secret.find_first_not_of(kDigits) != secret.npos) return std::nullopt;
  name.remove_suffix(1);
  return name;
}

bool is_journal_file_name(std::string_view file_name) {
  return file_name.starts_with('.') && file_name.find(kJournalMark) != std::string_view::npos;
}

Kinship ArchiveStamp::compare(const ArchiveStamp& other) const {
  const bool is_alike = size_bytes == other.size_bytes && header_size_bytes == other.header_size_bytes &&
                        header_hash == other.header_hash;
  if (!is_alike) return Kinship::Other;
  if (birth_ns == 0 || other.birth_ns == 0) return Kinship::Unsure;
  const bool is_same = inode == other.inode && birth_ns == other.birth_ns;
  return is_same ? Kinship::Same : Kinship::Other;
}

std::span<std::uint64_t> put_block_hashes(std::span<const std::byte> bytes, std::span<std::uint64_t> hashes) {
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min<std::size_t>(kBlockBytes, bytes.size()));
    hashes.front() = XXH3_64bits(block.data(), block.size());
    hashes = hashes.subspan(1);
    bytes = bytes.subspan(block.size());
  }
  return hashes;
}

void append_block_hashes(std::span<const std::byte> bytes, std::vector<std::uint64_t>& hashes) {
  const std::size_t before = hashes.size();
  hashes.resize(before + round_up_to_block(bytes.size()) / kBlockBytes);
  put_block_hashes(bytes, std::span(hashes).subspan(before));
}

bool FileNumbers::are_of_other_file(const FileStatus& file, int descriptor) const {
  if (inode == 0 && descriptor < 0) return false;
  return inode != file.identity.inode || (file.birth_ns != 0 && birth_ns != file.birth_ns);
}

std::string encode_record(const JournalRecord& record) {
  std::string text = encode_beginning(record);
  for (const JournalRange& range : record.ranges) text += encode_range(range);
  return text;
}

std::string encode_beginning(const JournalRecord& record) {
  Writer out;
  out.bytes(text_of(record.id));
  out.u64(record.archive.device);
  out.u64(record.archive.inode);
  out.u64(static_cast<std::uint64_t>(record.archive.birth_ns));
  out.u64(record.archive.size_bytes);
  out.u64(record.archive.header_size_bytes);
  out.u64(record.archive.header_hash);
  out.u64(record.sequence);
  out.u32(static_cast<std::uint32_t>(record.owner_pid));
  out.u32(static_cast<std::uint32_t>(record.group_record.size()));
  out.bytes(record.group_record);
  out.u32(static_cast<std::uint32_t>(record.ranges.size() + (record.after ? 1 : 0) + (record.index ? 1 : 0)));
  if (record.after) {
    out.u64(static_cast<std::uint64_t>(OperationType::ChangeStructure));
    out.u64(record.after->size_bytes);
    out.u64(record.after->header_size_bytes);
    out.u64(record.after->header_hash);
  }
  if (!record.index) return out.take();
  out.u64(static_cast<std::uint64_t>(OperationType::ReplaceIndex));
  out.u64(record.index->in_journal.offset);
  out.u64(record.index->in_journal.size_bytes);
  out.u64(record.index->new_hash);
  out.u64(record.index->old_hash);
  out.u64(record.index->name.size());
  out.bytes(record.index->name);
  return out.take();
}

std::string encode_range(const JournalRange& range) {
  Writer out;
  out.reserve(8 * (5 + range.new_hashes.size() + range.old_hashes.size()));
  out.u64(static_cast<std::uint64_t>(range.type));
  out.u64(range.archive.offset);
  out.u64(range.archive.size_bytes);
  out.u64(range.journal_offset);
  if (range.is_patch()) {
    out.u64(range.patch_size_bytes);
    out.u64(range.patch_hash);
    return out.take();
  }
  out.u64(range.old_offset);
  for (const std::uint64_t hash : range.new_hashes) out.u64(hash);
  for (const std::uint64_t hash : range.old_hashes) out.u64(hash);
  return out.take();
}

Result<JournalRecord> decode_record(std::string_view bytes, std::uint64_t journal_size_bytes, ByteRange heads,
                                    std::uint32_t version) {
  Reader in(bytes);
  JournalRecord record;
  record.id = read_id(in);
  record.archive.device = in.u64();
  record.archive.inode = in.u64();
  record.archive.birth_ns = static_cast<std::int64_t>(in.u64());
  record.archive.size_bytes = in.u64();
  record.archive.header_size_bytes = in.u64();
  record.archive.header_hash = in.u64();
  record.sequence = in.u64();
  record.owner_pid = static_cast<std::int32_t>(in.u32());
  const std::uint32_t group_record_bytes = in.u32();
  if (group_record_bytes > kMaxGroupRecordBytes) return damaged("the group record's name is too long");
  record.group_record = in.bytes(group_record_bytes);
  const std::uint32_t ranges = in.u32();
  if (!in.is_ok() || ranges > kMaxRanges) return damaged("the record is truncated");
  std::uint64_t end_of_last = 0;
  for (std::uint32_t at = 0; at < ranges; ++at) {
    JournalRange range;
    if (version >= kFirstVersionWithTypes) range.type = OperationType{in.u64()};
    if (in.is_ok() && range.type == OperationType::ChangeStructure && at == 0 && heads.offset == 0) {
      ArchiveShape& shape = record.after.emplace();
      shape.size_bytes = in.u64();
      shape.header_size_bytes = in.u64();
      shape.header_hash = in.u64();
      if (!in.is_ok() || !is_sound(shape)) return damaged("its new structure is not valid");
      continue;
    }
    if (in.is_ok() && range.type == OperationType::ReplaceIndex && at == (record.after ? 1 : 0) &&
        heads.offset == 0) {
      FileReplacement& index = record.index.emplace();
      index.in_journal.offset = in.u64();
      index.in_journal.size_bytes = in.u64();
      index.new_hash = in.u64();
      index.old_hash = in.u64();
      index.name = in.bytes(std::min<std::uint64_t>(in.u64(), kMaxIndexNameBytes + 1));
      if (!in.is_ok() || !is_sound(index, record.after.has_value(), journal_size_bytes, heads)) {
        return damaged("its new index is not valid");
      }
      continue;
    }
    if (in.is_ok() && range.is_patch() && !record.after && heads.offset == 0) {
      range.archive.offset = in.u64();
      range.archive.size_bytes = in.u64();
      range.journal_offset = in.u64();
      range.patch_size_bytes = in.u64();
      range.patch_hash = in.u64();
      if (!in.is_ok() || !is_sound_patch(range, record.archive.size_bytes, journal_size_bytes, heads)) {
        return damaged(fmt::format("patch {} of the record is not valid", at));
      }
      if (range.archive.offset < end_of_last) return damaged("the record's ranges overlap");
      end_of_last = range.archive.end();
      record.ranges.push_back(std::move(range));
      continue;
    }
    if (in.is_ok() && range.type != OperationType::WriteBlocks) {
      return unsupported(
          fmt::format("a journal with an operation of type {}, which this program does not know here",
                      static_cast<std::uint64_t>(range.type)));
    }
    range.archive.offset = in.u64();
    range.archive.size_bytes = in.u64();
    range.journal_offset = in.u64();
    range.old_offset = in.u64();
    if (!in.is_ok() || !is_sound(range, record.size_after(), journal_size_bytes, heads)) {
      return damaged(fmt::format("range {} of the record is not valid", at));
    }
    if (range.archive.offset < end_of_last) return damaged("the record's ranges overlap");
    end_of_last = range.archive.end();
    const std::uint64_t blocks = blocks_in(range.archive.size_bytes);
    const std::uint64_t old_hashes = range.old_offset == 0 ? blocks : 0;
    if (blocks > in.left() / 8 || blocks + old_hashes > in.left() / 8)
      return damaged("the record is truncated");
    range.new_hashes.reserve(blocks);
    range.old_hashes.reserve(old_hashes);
    for (std::uint64_t block = 0; block < blocks; ++block) range.new_hashes.push_back(in.u64());
    for (std::uint64_t block = 0; block < old_hashes; ++block) range.old_hashes.push_back(in.u64());
    record.ranges.push_back(std::move(range));
  }
  if (!in.is_ok() || in.left() != 0) return damaged("the record does not have the length in its head");
  if (!have_own_regions(record.ranges)) return damaged("two patches lie in the same bytes of the journal");
  if (record.after && !writes_all_growth(record.archive.size_bytes, record.after->size_bytes, record.ranges))
    return damaged("it makes the archive longer without bytes");
  if (record.after && !begins_with_header(record))
    return damaged("it changes the structure without a header");
  return record;
}

std::uint64_t most_record_bytes(std::uint64_t archive_size_bytes) {
  constexpr std::uint64_t kFixedBytes = 84 + 4 * 8 + 6 * 8 + kMaxIndexNameBytes;
  constexpr std::uint64_t kRangeBytes = 5 * 8;
  constexpr std::uint64_t kHashesBytes = 2 * 8;
  const std::uint64_t blocks = blocks_in(archive_size_bytes);
  return kFixedBytes + kMaxGroupRecordBytes + blocks * (kRangeBytes + kHashesBytes);
}

namespace {

std::string with_hash(std::string bytes) {
  Writer hash;
  hash.u64(XXH3_64bits(bytes.data(), bytes.size()));
  return bytes + hash.take();
}

/// Zeros mean that the head has no numbers. Returns nothing if the bytes are damaged.
std::optional<FileNumbers> own_numbers_in(std::string_view block) {
  constexpr std::size_t kNumbersBytes = 16;
  constexpr std::size_t kWithHash = kNumbersBytes + 8;
  if (block.size() < kOwnNumbersAt + kWithHash) return FileNumbers{};
  const std::string_view there = block.substr(kOwnNumbersAt, kWithHash);
  if (there.find_first_not_of('\0') == std::string_view::npos) return FileNumbers{};
  const std::string_view numbers = there.substr(0, kNumbersBytes);
  if (with_hash(std::string(numbers)) != there) return std::nullopt;
  Reader in(numbers);
  const std::uint64_t inode = in.u64();
  return FileNumbers{inode, static_cast<std::int64_t>(in.u64())};
}

}  // namespace

std::string encode_head(const JournalHead& head) {
  Writer out;
  out.bytes(kJournalMagic);
  out.u32(kJournalVersion);
  out.bytes(text_of(head.id));
  out.u64(head.record.offset);
  out.u64(head.record.size_bytes);
  out.u64(head.record_hash);
  out.bytes({reinterpret_cast<const char*>(head.boot.id.data()), head.boot.id.size()});
  out.u64(head.boot.host);
  std::string block = out.take();
  const std::uint64_t hash = XXH3_64bits(block.data(), block.size());
  Writer last;
  last.u64(hash);
  block += last.take();
  block.resize(kOwnNumbersAt, '\0');
  Writer own;
  own.u64(head.own.inode);
  own.u64(static_cast<std::uint64_t>(head.own.birth_ns));
  if (head.own != FileNumbers{}) block += with_hash(own.take());
  block.resize(kBlockBytes, '\0');
  return block;
}

Result<std::string> encode_head_with(const JournalRecord& record) {
  constexpr std::uint64_t kPlace = 128;  // after the head's own fields
  const std::string bytes = encode_record(record);
  if (bytes.size() > kBlockBytes - kPlace) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "the record does not fit into its head");
  }
  std::string block = encode_head({.id = record.id,
                                   .record = {kPlace, bytes.size()},
                                   .record_hash = XXH3_64bits(bytes.data(), bytes.size()),
                                   .boot = record.boot,
                                   .own = record.own});
  block.replace(kPlace, bytes.size(), bytes);
  return block;
}

tl::unexpected<Error> damaged(std::string_view why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("damaged: {}", why));
}

Result<JournalHead> decode_head(std::string_view block) {
  Reader in(block);
  if (in.bytes(kJournalMagic.size()) != kJournalMagic) return damaged("it does not begin like a journal");
  const std::uint32_t version = in.u32();
  if (in.is_ok() && (version < kOldestJournalVersion || version > kJournalVersion)) {
    return unsupported(fmt::format("a journal of version {}, this program knows versions {} to {}", version,
                                   kOldestJournalVersion, kJournalVersion));
  }
  JournalHead head;
  head.version = version;
  head.id = read_id(in);
  head.record.offset = in.u64();
  head.record.size_bytes = in.u64();
  head.record_hash = in.u64();
  if (version >= kFirstVersionWithBoot) {
    std::ranges::copy(in.bytes(head.boot.id.size()), head.boot.id.begin());
    head.boot.host = in.u64();
  }
  const std::size_t hashed_bytes = block.size() - in.left();
  const std::uint64_t hash = in.u64();
  if (!in.is_ok() || hash != XXH3_64bits(block.data(), hashed_bytes))
    return damaged("its head's hash does not match");
  const auto own = own_numbers_in(block);
  if (!own) return damaged("the numbers of its file do not have the hash beside them");
  head.own = *own;
  return head;
}

Result<JournalRecord> decode_sealed_record(std::string_view bytes, const JournalHead& head,
                                           std::uint64_t journal_size_bytes, ByteRange heads) {
  if (XXH3_64bits(bytes.data(), bytes.size()) != head.record_hash) {
    return damaged("its record's hash does not match");
  }
  auto record = decode_record(bytes, journal_size_bytes, heads, head.version);
  if (record && record->id != head.id) return damaged("head and record belong to different journals");
  if (record) record->boot = head.boot;
  if (record) record->own = head.own;
  return record;
}

}  // namespace stfs
