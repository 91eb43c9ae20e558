// Reads an archive's bytes: by system calls, and by a map of the file if its store can be mapped. System
// calls copy, and report failures of the store as errors. A map costs no copy, but reports failures only by a
// signal. So the map is for replies to the kernel, and for copies of few bytes that lie far apart
// (mapped_region.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/mapped_region.h"
#include "core/storage/readahead.h"

namespace stfs {

/// Auto: only system calls on the stores of store.h and if mapping fails, else a map too.
enum class Io : std::uint8_t { Auto, Mmap, Pread };

/// Any number of threads may read. Ranges are not empty and lay inside the file when it was opened. Every way
/// of reading fails with EIO and code ArchiveCut if the file has become too short, with EIO if its bytes
/// can't be read, and never returns zeros for them.
class ByteSource {
 public:
  /// @param file        the archive's file; must outlive the source
  /// @param size_bytes  the file's current size
  static Result<std::unique_ptr<ByteSource>> open(const File& file, std::uint64_t size_bytes, Io io);

  /// Copies the bytes that start at `offset`.
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  /// Returns the range in the map after making it readable; empty if there is no map. If the file is cut
  /// between this call and the kernel's copy, the copy fails, except for the end of the file's new last page:
  /// see KernelReply.
  [[nodiscard]] Result<MappedSpan> map(ByteRange range) const;
  /// The same range, without making it readable.
  [[nodiscard]] MappedSpan span(ByteRange range) const;
  /// Calls `copy` with the mapped range, for callers that copy few bytes from scattered places. The rules of
  /// copy_guarded() hold.
  /// @return false if there is no map, if this program has no guard, or if part of the range is gone: read()
  ///   then reports the error.
  using Copy = MappedRegion::Copy;
  [[nodiscard]] bool copy_from(ByteRange range, const Copy& copy) const;
  /// Fails if the file no longer has the range.
  [[nodiscard]] Result<void> check(ByteRange range) const;

  /// Switches to a copy of the file (a copy-up of overlayfs). Other threads may read meanwhile.
  /// @param copy  an open file of the copy; must outlive the source.
  Result<void> follow(const File& copy);
  /// Switches only the map: reads through the present file reach the copy anyway. `copy` need not stay open.
  Result<void> remap(const File& copy);

  [[nodiscard]] bool is_mapped() const { return map_.has_value(); }
  /// Why Auto has chosen not to map, for a person; empty if it maps.
  [[nodiscard]] std::string_view why_not_mapped() const { return why_not_mapped_; }

 private:
  ByteSource(const File& file, std::uint64_t size_bytes) : file_(&file), whole_{0, size_bytes} {}

  std::atomic<const File*> file_;
  const ByteRange whole_;
  std::optional<MappedRegion> map_;
  std::string_view why_not_mapped_;
  mutable Readahead readahead_;
};

}  // namespace stfs
