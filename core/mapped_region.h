// A read-only shared mapping of a whole file.
#pragma once

#include <cstddef>
#include <span>

#include "core/byte_range.h"
#include "core/error.h"
#include "core/file.h"

namespace stfs {

class MappedRegion {
 public:
  /// Maps the first size_bytes of the file; 0 gives an empty region. The mapping keeps the file's
  /// inode alive, not its length: a range that the file no longer covers raises SIGBUS when touched,
  /// so touch only what populate() has just answered for, or in copy_guarded() (bus_guard.h).
  static Result<MappedRegion> map(const File& file, std::uint64_t size_bytes);

  MappedRegion() = default;
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;
  ~MappedRegion();

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// The bytes of a range inside the region; nothing is read by this.
  [[nodiscard]] std::span<const std::byte> bytes(ByteRange range) const;
  /// Brings the range into memory and into this process's page table in one system call: a first
  /// touch costs one fault per 4 KiB otherwise (KERNEL-NOTES.md). EFAULT or EIO: the file does not
  /// cover the range any more, or its device failed. Kernels before 5.14 are asked by a plain read.
  [[nodiscard]] Result<void> populate(ByteRange range, const File& file) const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace stfs
