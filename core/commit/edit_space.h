// The space of an archive in an edit or a compaction: the header with a filler for each gap, copies of bytes
// to fillers, the disk space that an edit will need, and the disk space that fillers free.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/archive_edit.h"
#include "core/commit/commit_options.h"
#include "core/format/header.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::uint64_t kHeaderRoomBytes = 64 * 1024;  // for later edits

/// Returns the place where the data begin: at a page, behind a header of least_bytes with room for room_bytes
/// more. HeaderTooLarge (EFBIG).
Result<std::uint64_t> data_offset_with_room(std::uint64_t least_bytes, std::uint64_t room_bytes);

/// A tensor with bytes.
struct TensorAt {
  std::uint32_t tensor = 0;  // position in the edit
  ByteRange range;           // absolute
};

/// Formats the header, with a filler for each gap between data_at and `end`. The header may be larger than
/// data_at.
/// @param placed  all tensors that have bytes, ascending. Other tensors of the edit are empty.
/// @return the errors of format_tensors().
Result<FormattedHeader> format_edit_header(const ArchiveEdit& edit, std::span<const TensorAt> placed,
                                           std::uint64_t data_at, std::uint64_t end);

/// Called with the size of each piece. A failure ends the copying.
using OnCopy = std::function<Result<void>(std::uint64_t size_bytes)>;

/// Copies bytes of an archive to space of the archive that no tensor has: a filler. No reader uses that
/// space, so a crash in the middle leaves a valid archive, and no journal is needed.
///
/// Clones whole blocks if the file system can, and copies the other bytes. No space is reserved: a write that
/// fails for lack of space has changed no byte of a tensor. The caller holds the archive's lock for edits,
/// keeps readers out, and syncs the archive afterwards.
/// @param copies  no target overlaps a source.
/// @return also ENOSPC, EDQUOT. Bytes that were copied before the failure are in space that no tensor has.
Result<void> copy_to_free_space(File& archive, std::span<const EditLayout::Copy> copies,
                                const OnCopy& on_copy);

/// Disk space that an edit will need in the archive, reserved before its commit point: a full disk
/// after that point would leave the archive hidden until there is room again. Move-only.
///
/// Frees the space at its end, unless keep() was called. Used by one thread, which holds the archive's lock
/// for edits during this object's lifetime.
class ReservedSpace {
 public:
  ReservedSpace() = default;
  /// Reserves the bytes by which the archive becomes longer, and the bytes of fillers that become tensors,
  /// which may be holes. ENOSPC, EDQUOT. Does nothing if the file system can't reserve space.
  static Result<ReservedSpace> of(Archive& archive, const EditLayout& layout);
  ReservedSpace(ReservedSpace&& other) noexcept { swap(other); }
  ReservedSpace& operator=(ReservedSpace&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ReservedSpace();

  /// Called when the edit has reached its commit point.
  void keep() { archive_ = nullptr; }

 private:
  void swap(ReservedSpace& other) noexcept {
    std::swap(archive_, other.archive_);
    std::swap(holes_, other.holes_);
  }

  Archive* archive_ = nullptr;
  std::vector<ByteRange> holes_;
};

/// Frees the disk space of fillers, except for kept ranges. This is the space of deleted tensors whose bytes
/// an edit has kept because a program was reading them (ArchiveEdit::keeps_deleted). Punches holes under the
/// locks of an edit. The bytes of tensors do not change, so a crash at any moment does no harm. No commit of
/// this Archive may run during the call.
/// @param kept  absolute.
/// @return Busy (EBUSY): another process reads or changes the archive.
Result<void> give_back_fillers(Archive& archive, std::span<const ByteRange> kept,
                               const CommitOptions& options);

}  // namespace stfs
