// The bytes of one archive, in any store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/mapped_region.h"

namespace stfs {

/// Any number of threads may read. Ranges are not empty, and were inside the archive when it was opened. A
/// read fails with EIO and code ArchiveCut if the archive has become too short, and with EIO if its bytes
/// can't be read. A read never returns zeros for missing bytes.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Copies the bytes that start at `offset`.
  [[nodiscard]] virtual Result<void> read(std::span<std::byte> to, std::uint64_t offset) const = 0;
  /// Returns the range in the map after making it readable; empty if there is no map. If the file is cut
  /// between this call and the kernel's copy, the copy fails, except for the end of the file's new last page:
  /// see KernelReply.
  [[nodiscard]] virtual Result<MappedSpan> map(ByteRange range) const = 0;
  /// Returns the same range, without making it readable.
  [[nodiscard]] virtual MappedSpan span(ByteRange range) const = 0;
  /// Calls `copy` with the mapped range, for callers that copy few bytes from scattered places. The rules of
  /// copy_guarded() hold.
  /// @return false if there is no map, if this program has no guard, or if the file no longer has all of the
  /// range: read() then reports the error.
  using Copy = MappedRegion::Copy;
  [[nodiscard]] virtual bool copy_from(ByteRange range, const Copy& copy) const = 0;
  /// Fails if the archive no longer has the range.
  [[nodiscard]] virtual Result<void> check(ByteRange range) const = 0;

  [[nodiscard]] virtual bool is_mapped() const = 0;
  /// The reason, for a person, why the bytes are not mapped. Empty if they are mapped, or if the user asked
  /// for reads.
  [[nodiscard]] virtual std::string_view why_not_mapped() const = 0;

 protected:
  ByteSource() = default;
};

}  // namespace stfs
