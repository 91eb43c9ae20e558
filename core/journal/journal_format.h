// The format of a journal: everything that a commit writes into the archive, so that it can be repeated.
//
//   block 0   head: magic, version, id, place of the record, boot, hashes of the record and of the head
//   regions   new bytes, in whole 4096-byte blocks, each at a multiple of 4096
//   record    the archive's identity; then the operations in ascending order, each with its type
//
// The bytes of an operation of type 1, "write blocks", in units of 8:
//
// clang-format off
//   0  type                        since version 4; before, every operation writes blocks
//   1  offset in the archive       2  size in bytes
//   3  place of the new blocks     4  place of the old blocks, or 0
//   5  a hash of every new block, then, if the old blocks have no place, a hash of every old block
//
// An edit of the archive's structure (an "edit") begins with an operation of type 2, "change structure". Its
// other operations are below the new size, and the first of them begins with the new header:
//   0  type                        1  the archive's new size
//   2  size of the new header      3  XXH3 of the new header
//
// The edit of a sharded model also replaces its index: its second operation is of type 3:
//   0  type                        1  place of the new index
//   2  its size in bytes           3  XXH3 of the new index
//   4  XXH3 of the old index       5  size of the file's name, then the name
//
// A record that is no edit may begin with an operation of type 3 for the state of a weight sync, the file
// kSyncStateName beside the archive. The hash of an old file that does not exist is 0.
//
// An operation of type 4, "patch bytes", changes single bytes of a range that need not be whole blocks:
//   0  type                        1  offset in the archive
//   2  size in bytes               3  place of the patch (byte_patch.h)
//   4  size of the patch           5  XXH3 of the patch
// clang-format on
//
// No two patches share bytes of the journal, so that reading all of them takes no longer than reading the
// journal once. A record with two such patches is damaged.
//
// Next to the hash of the head, at kOwnNumbersAt, the head has the inode number and the birth time of the
// journal itself. They show that a file is only a copy of a journal's bytes: other users may choose the bytes
// of a file that a writer of the archive has made, and give it a journal's name.
//
// An edit's blocks after the old archive's last whole block have no old content: their old hash is 0. An edit
// writes all of these blocks, so no record asks for more bytes than its journal has.
//
// The old blocks are in the journal if the file system lets files share blocks: sharing costs nothing, and
// the archive need not be read for their hashes. A copy of such a journal still has the old blocks.
//
// All numbers are little-endian. Hashes are XXH3-64. If the hashes of a journal do not agree, it was not
// committed, or was damaged later, and no part of it may be used. Without hashes over the data, one fsync
// would not be enough, and torn data would be replayed.
//
// A lane journal has two lanes with room for 16 blocks of new bytes each. A lane's bytes are next to the
// heads, so that a commit is one contiguous write:
//
//   block 0..15   lane 0's new bytes, as many as there are, up to the heads
//   block 16, 17  the heads of lane 0 and 1, each with its record inside
//   block 18, 19  copies of both heads: one of the two may be damaged or torn
//   block 20..35  lane 1's new bytes
//   block 36      unused; it stays because earlier builds refuse a file of another size
//
// A transaction over several archives (shards) writes one journal per archive. All of them name one
// group record (group_record.h), and are committed when the group record is. None of them is a lane journal.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::uint64_t kBlockBytes = 4096;
/// Version 3 added the boot to the head, version 4 the type to each operation. Versions 2 and 3 are still
/// read, but never written.
inline constexpr std::uint32_t kJournalVersion = 4;
inline constexpr std::uint32_t kOldestJournalVersion = 2;

constexpr std::uint64_t round_down_to_block(std::uint64_t offset) {
  return offset - offset % kBlockBytes;
}
constexpr std::uint64_t round_up_to_block(std::uint64_t offset) {
  return round_down_to_block(offset + kBlockBytes - 1);
}

/// Returns the blocks that are completely in the range; empty if there are none.
constexpr ByteRange whole_blocks_in(ByteRange range) {
  const std::uint64_t begin = round_up_to_block(range.offset);
  const std::uint64_t end = round_down_to_block(range.end());
  return begin < end ? ByteRange{begin, end - begin} : ByteRange{begin, 0};
}

/// 128 random bits. The journal's file name contains them as 32 hexadecimal digits.
struct JournalId {
  std::array<std::uint8_t, 16> bytes{};
  static JournalId random();
  [[nodiscard]] std::string text() const;
  friend bool operator==(const JournalId&, const JournalId&) = default;
};

/// The mark between the archive's name and the id in the name of each journal.
inline constexpr std::string_view kJournalMark = ".stj.";
/// The start of the names of an archive's journals, ".NAME.stj.". A committed journal is called
/// ".NAME.stj.ID". On a file system without unnamed files, a journal in staging is called
/// ".NAME.stj.ID.staged".
std::string journal_prefix(const std::string& archive_file_name);
/// Returns true if a journal, a staged journal or a new index, of any archive, can have this name.
bool is_journal_file_name(std::string_view file_name);
inline constexpr std::string_view kStagedSuffix = ".staged";
/// A new index is called ".NAME.stj.ID.SECRET.index" after its journal, until it takes the old index's name
/// (file_replacement.h). A killed process leaves the file; recovery removes it with its journal.
inline constexpr std::string_view kNewIndexSuffix = ".index";
/// Returns ".SECRET": a dot and 64 random bits as 16 hexadecimal digits. Other users of the directory cannot
/// foresee the name of a file with this part, so they cannot take the name first.
std::string secret_name_part();
/// Removes ".SECRET" and the suffix from a name. Nothing if the name does not end so.
std::optional<std::string_view> without_secret(std::string_view name, std::string_view suffix);
/// A lane journal (lane_journal.h) is called ".NAME.stj.ID.standing".
inline constexpr std::string_view kLaneJournalSuffix = ".standing";

/// The result of a comparison of two stamps.
enum class Kinship : std::uint8_t {
  Same,
  Other,
  Unsure,  // a birth time is missing and the rest agrees: the archive's blocks decide (journal_blocks.h)
};

/// Identifies the archive of a journal. The archive's bytes and mtime are not part of the stamp: they change
/// when the journal is applied.
struct ArchiveStamp {
  std::uint64_t device = 0;  // never compared: it differs between hosts, and may change at a reboot
  std::uint64_t inode = 0;
  std::int64_t birth_ns = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t header_size_bytes = 0;
  std::uint64_t header_hash = 0;

  /// Without birth times, an equal inode number proves nothing, since the file system reuses it. Then only a
  /// different size or header proves that the archive is another one.
  [[nodiscard]] Kinship compare(const ArchiveStamp& other) const;
};

/// Distinguishes a file from every other file of its file system.
struct FileNumbers {
  std::uint64_t inode = 0;
  std::int64_t birth_ns = 0;  // 0: the file system has no birth times

  static FileNumbers of(const FileStatus& file) { return {file.identity.inode, file.birth_ns}; }
  /// Returns true if the file has other numbers than its record stores: the record was copied into the file.
  /// Without birth times the inode number decides. A test may write a journal without numbers into its own
  /// storage.
  /// @param descriptor  the file's; -1 in such a storage.
  [[nodiscard]] bool are_of_other_file(const FileStatus& file, int descriptor) const;
  friend bool operator==(const FileNumbers&, const FileNumbers&) = default;
};
inline constexpr std::string_view kOfOtherFile =
    "tells the numbers of another file as its own: it was copied, or it was not made as a journal";
inline constexpr std::string_view kOfOtherFileStep =
    "delete it; if the archive was copied with it, run `stfs recover` where they were copied from, and copy "
    "the archive again";

/// The size and header of the archive after an edit.
struct ArchiveShape {
  std::uint64_t size_bytes = 0;
  std::uint64_t header_size_bytes = 0;
  std::uint64_t header_hash = 0;

  friend bool operator==(const ArchiveShape&, const ArchiveShape&) = default;
};

/// While an edit is applied, the first bytes of the archive are these: a length that every reader refuses.
inline constexpr std::array<std::byte, 8> kNoHeaderLength = {
    std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff},
    std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};

/// The effect of an operation on the archive. The type decides which bytes follow it in the record.
enum class OperationType : std::uint64_t {
  WriteBlocks = 1,
  ChangeStructure = 2,
  ReplaceIndex = 3,
  PatchBytes = 4
};

/// The file with a host's state of a model's weight sync, relative to the model's directory.
inline constexpr std::string_view kSyncStateName = ".weight_sync/state.json";

/// No index, and no sync state, is longer.
inline constexpr std::uint64_t kMaxIndexBytes = 256 << 20;

/// New bytes for the index of a sharded model, which is beside the archive, or for kSyncStateName.
struct FileReplacement {
  std::string name;      // the file's name
  ByteRange in_journal;  // the new bytes
  std::uint64_t new_hash = 0;
  std::uint64_t old_hash = 0;  // 0: there is no file yet
};

/// Writes a run of the archive's bytes. The run starts at a multiple of 4096, and ends at one or at the end
/// of the archive (of the new archive, in an edit). A run of PatchBytes may start and end anywhere: its patch
/// has the hashes.
struct JournalRange {
  OperationType type = OperationType::WriteBlocks;
  ByteRange archive;
  std::uint64_t journal_offset = 0;
  std::uint64_t old_offset = 0;  // the place of the old blocks in the journal; 0: old_hashes describe them
  std::vector<std::uint64_t> new_hashes;  // one per block; the last block may be partial
  std::vector<std::uint64_t> old_hashes;  // empty if old_offset is set
  std::uint64_t patch_size_bytes = 0;     // only for PatchBytes: the size of the patch at journal_offset
  std::uint64_t patch_hash = 0;

  [[nodiscard]] bool is_patch() const { return type == OperationType::PatchBytes; }
};

struct JournalRecord {
  JournalId id;
  ArchiveStamp archive;
  /// Grows with each commit of an archive. In a lane journal, the lane with the larger value is valid.
  std::uint64_t sequence = 0;
  std::int32_t owner_pid = 0;  // for messages
  std::string group_record;  // a file name in the archive's directory; empty: the journal commits on its own
  /// The boot that a commit with durability=process ends with. Unset: the commit survives a reboot. The head
  /// stores it, so that it can still be read when the rest is lost.
  Boot boot;
  FileNumbers own{};                       // the journal's numbers; in the head
  std::optional<ArchiveShape> after{};     // set: this is an edit
  std::optional<FileReplacement> index{};  // in an edit; in other records only for kSyncStateName
  std::vector<JournalRange> ranges;

  /// The size of the archive when all is applied.
  [[nodiscard]] std::uint64_t size_after() const { return after ? after->size_bytes : archive.size_bytes; }
};

/// Writes the hash of each block of `bytes`, which start at a multiple of 4096, to the beginning of `hashes`.
/// @return the rest of `hashes`.
std::span<std::uint64_t> put_block_hashes(std::span<const std::byte> bytes, std::span<std::uint64_t> hashes);
void append_block_hashes(std::span<const std::byte> bytes, std::vector<std::uint64_t>& hashes);

/// Returns true if an edit that makes the archive longer writes every new block. Otherwise its record is
/// damaged.
/// @param ranges  ascending.
bool writes_all_growth(std::uint64_t before_bytes, std::uint64_t after_bytes,
                       std::span<const JournalRange> ranges);

/// A record is its beginning, followed by its ranges one after another.
std::string encode_record(const JournalRecord& record);
std::string encode_beginning(const JournalRecord& record);
std::string encode_range(const JournalRange& range);
/// The place of an ordinary journal's head.
inline constexpr ByteRange kHead = {0, kBlockBytes};
/// Decodes a record. Any bytes are safe input: sizes and offsets are checked against the archive's size in
/// the stamp and against journal_size_bytes before they are used.
/// InvalidArgument: damaged. With errno EPROTONOSUPPORT: an operation has a type that this program does not
/// know.
/// @param heads  the place that can hold no new bytes: kHead or kLaneHeads.
/// @param version  the version in the record's head.
Result<JournalRecord> decode_record(std::string_view bytes, std::uint64_t journal_size_bytes,
                                    ByteRange heads = kHead, std::uint32_t version = kJournalVersion);

/// The largest record that a journal of an archive of that size can have: a record names each block at most
/// once.
std::uint64_t most_record_bytes(std::uint64_t archive_size_bytes);

struct JournalHead {
  JournalId id;
  ByteRange record;  // relative to the beginning of the head
  std::uint64_t record_hash = 0;
  Boot boot;                                // see JournalRecord::boot
  std::uint32_t version = kJournalVersion;  // set by decode_head(); always the newest where it is written
  FileNumbers own{};
};
/// The offset of the journal's own numbers in a head: 8 bytes each, then the XXH3 of both.
inline constexpr std::uint64_t kOwnNumbersAt = 104;

/// The layout of a lane journal.
inline constexpr std::size_t kLanes = 2;
inline constexpr std::uint64_t kLaneBlocks = 16;
inline constexpr std::uint64_t kLaneBytes = kLaneBlocks * kBlockBytes;
inline constexpr ByteRange kLaneHeads = {kLaneBytes, 2 * kLanes* kBlockBytes};
inline constexpr std::uint64_t kLaneJournalBytes =
    kLaneHeads.offset + kLaneHeads.size_bytes + kLaneBytes + kBlockBytes;

/// Returns exactly kBlockBytes.
std::string encode_head(const JournalHead& head);
/// Does the same with the record inside, for lane journals. InvalidArgument if the record does not fit.
Result<std::string> encode_head_with(const JournalRecord& record);
/// Decodes a head's record. InvalidArgument if the record's hash or id does not agree with the head. With
/// errno EPROTONOSUPPORT: see decode_record().
Result<JournalRecord> decode_sealed_record(std::string_view bytes, const JournalHead& head,
                                           std::uint64_t journal_size_bytes, ByteRange heads = kHead);
/// InvalidArgument: not a journal, or damaged. With errno EPROTONOSUPPORT: of a version that this program
/// does not know.
Result<JournalHead> decode_head(std::string_view block);
/// The error of a decoder for bytes that are not sound.
tl::unexpected<Error> damaged(std::string_view why);

}  // namespace stfs
