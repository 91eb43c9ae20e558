// The bytes in which a range's new content differs from its old content. A journal stores them as a patch by
// bytes (journal_format.h, operation type 4).
//
// The layout of a patch in a region of a journal:
//
// clang-format off
//   hashes of the new content, then of the old one: XXH3-64 of each part of the range that is in one
//   4096-byte block of the archive
//   entries in ascending order: gap since the end of the last entry, size in bytes, new bytes
// clang-format on
//
// Gaps and sizes are LEB128 numbers. A gap is at least one byte, except the first one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// The longest range of one patch, and the largest region. A patch of the whole range is a little longer than
/// its bytes.
inline constexpr std::uint64_t kMostPatchedBytes = 4 << 20;
inline constexpr std::uint64_t kMostPatchBytes = 2 * kMostPatchedBytes;

/// Encodes a patch.
/// @param range   in the archive, at most kMostPatchedBytes.
/// @param before  the range's content, and after: its new one.
/// @param region  gets the patch. A caller that encodes many patches keeps it.
/// @return false if both contents are the same: `region` is then unspecified.
bool encode_patch(ByteRange range, std::span<const std::byte> before, std::span<const std::byte> after,
                  std::vector<std::byte>& region);

/// One decoded patch. Refers to the region's bytes. Immutable.
class BytePatch {
 public:
  /// Any bytes are safe input. InvalidArgument: damaged.
  /// @param region  must outlive the patch.
  static Result<BytePatch> decode(ByteRange range, std::span<const std::byte> region);

  /// Gives the bytes of a part of the range their new values.
  /// @param to  the content of the part, old or new, or both mixed.
  /// @param offset  in the archive, of the first byte.
  void apply(std::span<std::byte> to, std::uint64_t offset) const;

  /// The part of the range that is in one block of the archive.
  struct Part {
    ByteRange range;  // in the archive
    std::uint64_t new_hash = 0;
    std::uint64_t old_hash = 0;
  };
  [[nodiscard]] std::size_t parts() const { return hashes_.size() / 16; }
  [[nodiscard]] Part part(std::size_t position) const;

  /// A run of parts with changed bytes.
  struct Run {
    ByteRange range;                     // in the archive
    std::span<const std::byte> entries;  // from the run's first one on
    std::size_t end_before = 0;          // the end of the previous entry in the patch's range
  };
  /// Calls `changed` for each run in ascending order, until it fails.
  [[nodiscard]] Result<void> for_each_run(const std::function<Result<void>(const Run& run)>& changed) const;
  /// Does the same as apply() for the content of a run.
  void apply(const Run& run, std::span<std::byte> to) const;

 private:
  void apply(std::span<const std::byte> entries, std::size_t end_before, std::span<std::byte> to,
             std::uint64_t offset) const;
  BytePatch(ByteRange range, std::span<const std::byte> hashes, std::span<const std::byte> entries)
      : range_(range), hashes_(hashes), entries_(entries) {}

  ByteRange range_;
  std::span<const std::byte> hashes_;
  std::span<const std::byte> entries_;
};

/// Reads a patch from a journal. InvalidArgument: damaged, or its hash does not agree with the record's.
/// @param region  gets the patch, which must not outlive it. A caller that reads many patches keeps it.
Result<BytePatch> read_patch(const File& journal, const JournalRange& range, std::vector<std::byte>& region);

}  // namespace stfs
