// What an edit makes of one archive: its tensors and metadata afterwards, and where all bytes lie then.
//
// An edit adds, deletes, renames and reinterprets tensors, and changes metadata. Bytes of tensors that stay
// are not moved, with one exception. All of it is written through a journal (journal/journal_apply.h):
//
//  - the header is written anew. Its padding gives the room.
//  - a deleted tensor becomes a filler (format/header.h), so the file stays valid for every reader. Fillers
//    that touch are merged. At the end of the file the archive becomes shorter instead.
//  - a new tensor takes the smallest filler that it fits into, else the archive becomes longer.
//  - afterwards a compaction may close the gaps (compaction.h, Gaps::Cheap).
//  - if the header does not fit, the first tensors move to the end of the file, and the header takes their
//    place with 64 KiB to spare: only the first edit of an archive without padding costs that.
//
// Bytes of a version that somebody still reads are neither overwritten nor cut off. So while the archive is
// open elsewhere, deleted tensors keep their bytes, no filler is used, and the header can't take the place of
// tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/archive/archive_version.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/format/metadata.h"

namespace stfs {

/// A tensor after the edit.
struct EditedTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  /// The tensor whose bytes it takes over; nothing: its bytes are new. Both then have the same size.
  std::optional<TensorId> from;
};

/// The whole archive after the edit: a tensor that is not listed is deleted.
struct ArchiveEdit {
  std::vector<EditedTensor> tensors;
  Metadata metadata;
  // For a program that goes on with the archive after the edit, and has readers of its own:
  /// Absolute ranges that stay as they are, although no tensor has them. They may overlap.
  std::vector<ByteRange> kept{};
  /// The bytes of tensors that this edit deletes also stay as they are.
  bool keeps_deleted = false;
  /// Makes room for the header even if there is some.
  bool makes_room = false;
};

/// The edit that changes nothing.
ArchiveEdit edit_of(const ArchiveVersion& version);

/// Immutable once made.
struct EditLayout {
  /// A new tensor, or one whose bytes move.
  struct Placed {
    std::uint32_t tensor = 0;                   // position in ArchiveEdit::tensors
    ByteRange file_range;                       // its place in the archive afterwards
    std::optional<std::uint64_t> moved_from{};  // offset in the archive before; nothing: its bytes are new
  };
  std::string header;              // the length and the JSON with its padding
  std::uint64_t size_bytes = 0;    // of the archive
  std::vector<Placed> placed;      // ascending, disjoint; empty tensors are left out
  std::vector<ByteRange> fillers;  // absolute, ascending
  std::uint64_t freed_bytes = 0;   // of fillers, and by which the archive becomes shorter
  /// Absolute ranges, whose disk space is given back: fillers, or parts of them, that nobody reads.
  std::vector<ByteRange> given_back;
  bool needs_all_readers_out =
      false;  // it overwrites, cuts off or gives back bytes that the version before has
  /// Bytes that are copied before the edit, to space that no tensor has (compaction.h).
  struct Copy {
    std::uint64_t from = 0;  // offset in the archive
    std::uint64_t to = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Copy> copies{};
  /// The tensors whose bytes these copies have: positions in ArchiveEdit::tensors.
  std::vector<std::uint32_t> copied{};
};

/// Plans the edit. Changes nothing.
/// @param is_read_elsewhere  Archive::has_other_readers().
/// @return InvalidArgument: a name is given twice, is no UTF-8, is "__metadata__" or a filler's; a size that
///   overflows or differs from the bytes that are taken over. HeaderTooLarge (EFBIG). Busy (EBUSY): the
///   header has no room, and its room is taken by bytes that are kept, or the archive is open elsewhere.
Result<EditLayout> lay_out(const ArchiveVersion& version, const ArchiveEdit& edit, bool is_read_elsewhere);

}  // namespace stfs
