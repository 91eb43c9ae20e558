// Where an archive's bytes come from: reads, and a map of its file where its store can be mapped. Reads copy,
// and tell of a store's failures as errors. A map costs no copy, and has only a signal for them: it is for
// replies to the kernel, and for copies of little that lies far apart (mapped_region.h).
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

/// Auto: reads alone on the stores of store.h and where a file can't be mapped, else a map too.
enum class Io : std::uint8_t { Auto, Mmap, Pread };

/// Any number of threads may read. Ranges are not empty and lay inside the file when it was opened. Whatever
/// way: where the file has become too short it is EIO with code ArchiveCut, where its bytes can't be had EIO,
/// and never zeros.
class ByteSource {
 public:
  /// @param file        of the archive; must outlive the source
  /// @param size_bytes  of the file, now
  static Result<std::unique_ptr<ByteSource>> open(const File& file, std::uint64_t size_bytes, Io io);

  /// Copies the bytes from `offset` on.
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  /// The range in the map, made ready; empty where there is no map. What is cut off between this call and the
  /// kernel's copy fails there, but for the end of the file's new last page: see KernelReply.
  [[nodiscard]] Result<MappedSpan> map(ByteRange range) const;
  /// The same range, not looked at.
  [[nodiscard]] MappedSpan span(ByteRange range) const;
  /// Lets `copy` take what it wants out of such a range: for those who want little of it, here and there. The
  /// rules of copy_guarded() hold for it.
  /// @return false where there is no map, this program has no guard, or some of the range is gone: read()
  /// tells.
  using Copy = MappedRegion::Copy;
  [[nodiscard]] bool copy_from(ByteRange range, const Copy& copy) const;
  /// Whether the file still has the range.
  [[nodiscard]] Result<void> check(ByteRange range) const;

  /// The file has been copied (a copy-up of overlayfs): the bytes come from the copy from now on. Others may
  /// read meanwhile.
  /// @param copy  open on the copy; must outlive the source.
  Result<void> follow(const File& copy);
  /// The same for the map alone: reads of the file that it has find the copy by themselves. `copy` need not
  /// stay open.
  Result<void> remap(const File& copy);

  [[nodiscard]] bool is_mapped() const { return map_.has_value(); }
  /// Why Auto has decided for reads, for a person; empty where it has not.
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
