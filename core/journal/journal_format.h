// The bytes of a journal: what a commit has promised to the archive, so that it can be done again.
//
//   block 0   head: magic, version, id, where the record lies, the boot, hashes of the record and of the head
//   regions   new bytes, in whole 4096-byte blocks, each at a multiple of 4096
//   record    whose archive it is, and per range of it: where the new blocks lie, a hash of every new
//             block, and what the old ones were: a hash of each, or where in the journal they lie
//
// The old blocks lie in the journal where the file system lets files share blocks: that costs nothing, and
// the archive need not be read for their hashes. A journal that was copied elsewhere still has them.
//
// All numbers are little-endian. Hashes are XXH3-64. A journal whose hashes do not agree was not
// committed, or has been damaged since; nothing of it may be used (DURABILITY.md: without the hashes
// over the data, one fsync would not be enough, and torn data was replayed).
//
// A standing journal has two lanes, and room for 16 blocks of new bytes in each. A lane's bytes lie beside
// the heads, so that one write in one piece is enough:
//
//   block 0..15   lane 0's new bytes, as many as there are, up to the heads
//   block 16, 17  the heads of lane 0 and 1, each with its record inside
//   block 18, 19  the same again: one of the two may be damaged or torn
//   block 20..35  lane 1's new bytes
//   block 36      unused; it stays because earlier builds refuse a file of another size
//
// A transaction over several archives (shards) writes one journal per archive, which all name one coordinator
// (coordinator.h): they count as committed when that does. None of them is a standing journal.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::uint64_t kBlockBytes = 4096;
/// 3 added the boot to the head. Journals of version 2 are still read, and none is written.
inline constexpr std::uint32_t kJournalVersion = 3;
inline constexpr std::uint32_t kOldestJournalVersion = 2;

constexpr std::uint64_t round_down_to_block(std::uint64_t offset) {
  return offset - offset % kBlockBytes;
}
constexpr std::uint64_t round_up_to_block(std::uint64_t offset) {
  return round_down_to_block(offset + kBlockBytes - 1);
}

/// Random, 128 bits, in 32 hexadecimal digits as part of the journal's file name.
struct JournalId {
  std::array<std::uint8_t, 16> bytes{};
  static JournalId random();
  [[nodiscard]] std::string text() const;
  friend bool operator==(const JournalId&, const JournalId&) = default;
};

/// The start of the names of an archive's journals, ".NAME.stj.": a committed journal is called
/// ".NAME.stj.ID", one still being staged on a file system without unnamed files ".NAME.stj.ID.staged".
std::string journal_prefix(const std::string& archive_file_name);
inline constexpr std::string_view kStagedSuffix = ".staged";
/// A standing journal (standing_journal.h) is called ".NAME.stj.ID.standing".
inline constexpr std::string_view kStandingSuffix = ".standing";

/// Whether two stamps are one archive's.
enum class Kinship : std::uint8_t {
  Same,
  Other,
  Unsure,  // one has no birth time and the rest agrees: the archive's blocks decide (journal_blocks.h)
};

/// What tells the archive that a journal belongs to. Its bytes and its mtime change when the journal is
/// applied, so neither is part of it.
struct ArchiveStamp {
  std::uint64_t device = 0;  // never compared: it differs between hosts, and may change at a reboot
  std::uint64_t inode = 0;
  std::int64_t birth_ns = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t header_size_bytes = 0;
  std::uint64_t header_hash = 0;

  /// Without birth times an inode proves nothing, since its number is used again: size and header decide then
  /// who is certainly another archive.
  [[nodiscard]] Kinship compare(const ArchiveStamp& other) const;
};

/// A run of the archive's bytes: starts at a multiple of 4096, ends at one or at the end of the archive.
struct JournalRange {
  ByteRange archive;
  std::uint64_t journal_offset = 0;
  std::uint64_t old_offset = 0;           // in the journal, of the old blocks; 0: their hashes tell
  std::vector<std::uint64_t> new_hashes;  // one per block, the last one over what there is of it
  std::vector<std::uint64_t> old_hashes;  // none with old_offset
};

struct JournalRecord {
  JournalId id;
  ArchiveStamp archive;
  /// Later commits of an archive have larger ones: of two lanes of a standing journal the later one counts.
  std::uint64_t sequence = 0;
  std::int32_t owner_pid = 0;  // for messages
  std::string coordinator;     // a name in the archive's directory; empty: commits on its own
  /// The boot that a commit with durability=process ends with. Not known: the commit survives it. Kept in the
  /// head, so that it can be told where the rest has been lost.
  Boot boot;
  std::vector<JournalRange> ranges;
};

/// Hash of each block of bytes that start at a multiple of 4096, to the beginning of `hashes`. @return its
/// rest.
std::span<std::uint64_t> put_block_hashes(std::span<const std::byte> bytes, std::span<std::uint64_t> hashes);
void append_block_hashes(std::span<const std::byte> bytes, std::vector<std::uint64_t>& hashes);

/// The beginning, and then its ranges, one behind the other.
std::string encode_record(const JournalRecord& record);
std::string encode_beginning(const JournalRecord& record);
std::string encode_range(const JournalRange& range);
/// Where the head of a journal lies.
inline constexpr ByteRange kHead = {0, kBlockBytes};
/// Any bytes are safe input: sizes and offsets are checked against the archive's size in the stamp and
/// against journal_size_bytes before anything is believed.
/// @param heads  where no new bytes can lie: kHead or kStandingHeads.
Result<JournalRecord> decode_record(std::string_view bytes, std::uint64_t journal_size_bytes,
                                    ByteRange heads = kHead);

/// The largest record that a journal of an archive of that size can have: each block is named once at most.
std::uint64_t most_record_bytes(std::uint64_t archive_size_bytes);

struct JournalHead {
  JournalId id;
  ByteRange record;  // from the beginning of the head
  std::uint64_t record_hash = 0;
  Boot boot;  // JournalRecord::boot
};

/// The places in a standing journal.
inline constexpr std::size_t kLanes = 2;
inline constexpr std::uint64_t kLaneBlocks = 16;
inline constexpr std::uint64_t kLaneBytes = kLaneBlocks * kBlockBytes;
inline constexpr ByteRange kStandingHeads = {kLaneBytes, 2 * kLanes* kBlockBytes};
inline constexpr std::uint64_t kStandingBytes =
    kStandingHeads.offset + kStandingHeads.size_bytes + kLaneBytes + kBlockBytes;

/// Exactly kBlockBytes.
std::string encode_head(const JournalHead& head);
/// The same with the record inside, for standing journals: InvalidArgument where it does not fit.
Result<std::string> encode_head_with(const JournalRecord& record);
/// The record of that head: its hash and its id agree with the head's, else InvalidArgument.
Result<JournalRecord> decode_sealed_record(std::string_view bytes, const JournalHead& head,
                                           std::uint64_t journal_size_bytes, ByteRange heads = kHead);
/// InvalidArgument: no journal, or damaged. EPROTONOSUPPORT: a journal of a version that is not known here.
Result<JournalHead> decode_head(std::string_view block);
/// What one of its readers says of a record that is not sound.
tl::unexpected<Error> damaged(std::string_view why);

}  // namespace stfs
