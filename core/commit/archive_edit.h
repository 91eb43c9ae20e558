// The result of an edit of one archive: its tensors and metadata after the edit, and the places of all bytes.
//
// An edit adds, deletes, renames and reinterprets tensors, and changes metadata. Bytes of tensors that stay
// are not moved, with one exception. The whole edit is written through a journal (journal/journal_apply.h):
//
//  - the header is rewritten, within the room that its padding gives.
//  - a deleted tensor becomes a filler (format/header.h), so the file stays valid for every reader. Fillers
//    that touch are merged. At the end of the file the archive becomes shorter instead.
//  - a new tensor takes the smallest filler that it fits into, else the archive becomes longer.
//  - afterwards a compaction may close the gaps (compaction.h, Gaps::Cheap).
//  - if the header does not fit, the first tensors move to the end of the file. The header takes their place,
//    with 64 KiB to spare: only the first edit of an archive without padding costs that.
//
// Bytes of a version that a reader still uses are neither overwritten nor cut off. So while the archive is
// open elsewhere, deleted tensors keep their bytes, no filler is used, and the header can't take the place of
// tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/archive/archive_version.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/format/metadata.h"

namespace stfs {

/// A tensor after the edit. The name and the shape are views, because an edit lists all tensors: they must
/// outlive the edit and the Transaction that takes it.
struct EditedTensor {
  std::string_view name;
  Dtype dtype = Dtype::U8;
  std::span<const std::uint64_t> shape;
  /// The tensor whose bytes this tensor takes over, of the same size; nothing: the bytes are new.
  std::optional<TensorId> from;
};

/// The whole archive after the edit. A tensor that is not listed is deleted.
struct ArchiveEdit {
  std::vector<EditedTensor> tensors;
  Metadata metadata;
  // For a program that continues to use the archive after the edit and has readers:
  /// Absolute ranges that stay as they are, although no tensor has them. The ranges may overlap.
  std::vector<ByteRange> kept{};
  /// The bytes of tensors that this edit deletes also stay as they are.
  bool keeps_deleted = false;
  /// Makes room for the header even if there is enough.
  bool makes_room = false;
};

/// Returns the edit that changes nothing. Its names and shapes are valid as long as the version.
ArchiveEdit edit_of(const ArchiveVersion& version);

/// Immutable once made.
struct EditLayout {
  /// Sets `header` and `content`.
  /// @param data_at  where the data begin; it must be large enough for the header.
  void set_header(FormattedHeader formatted, std::uint64_t data_at);

  /// A new tensor, or a tensor whose bytes move.
  struct Placed {
    std::uint32_t tensor = 0;                   // position in ArchiveEdit::tensors
    ByteRange file_range;                       // its place in the archive after the edit
    std::optional<std::uint64_t> moved_from{};  // offset before the edit; nothing: new bytes
  };
  std::string header;                            // the length and the JSON with its padding
  std::shared_ptr<const ArchiveHeader> content;  // of the header
  std::uint64_t size_bytes = 0;                  // of the archive
  std::vector<Placed> placed;                    // ascending, disjoint; empty tensors are left out
  std::vector<ByteRange> fillers;                // absolute, ascending
  std::uint64_t freed_bytes = 0;  // size of the fillers, plus the bytes by which the archive becomes shorter
  /// Absolute ranges whose disk space is freed: fillers, or parts of fillers, that no reader uses.
  std::vector<ByteRange> given_back;
  bool needs_all_readers_out = false;  // the edit overwrites, cuts off or frees bytes of the version before
  /// Bytes that are copied before the edit, to space that no tensor has (compaction.h).
  struct Copy {
    std::uint64_t from = 0;  // offset in the archive
    std::uint64_t to = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Copy> copies{};
  /// The tensors whose bytes are in these copies: positions in ArchiveEdit::tensors.
  std::vector<std::uint32_t> copied{};
};

/// Plans the edit. Changes nothing.
/// @param is_read_elsewhere  Archive::has_other_readers().
/// @return InvalidArgument: a name is given twice, is no UTF-8, is "__metadata__" or is reserved for fillers;
/// a size overflows or differs from the size of the bytes that are taken over. HeaderTooLarge (EFBIG). Busy
/// (EBUSY): the header has no room, and kept bytes are in the way, or the archive is open elsewhere.
Result<EditLayout> lay_out(const ArchiveVersion& version, const ArchiveEdit& edit, bool is_read_elsewhere);

}  // namespace stfs
