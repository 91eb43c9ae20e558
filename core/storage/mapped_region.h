// A read-only shared mapping of a whole file, and ranges of it.
//
// The mapping keeps the file's inode alive, not its length. The read of a page that the file no longer
// covers, or that its disk can't deliver, raises SIGBUS. So nobody gets a pointer into the mapping but those
// who never read through it in this process: the kernel, and programs that ask for the pages themselves. All
// other code copies.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

namespace interface {
class ForeignPages;
}

/// Bytes of a mapping. Valid while the mapping is.
class MappedSpan {
 public:
  MappedSpan() = default;

  [[nodiscard]] std::size_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  /// copy_by_kernel(). Bytes behind a new end of the file, in its last page, are zeros here: who has the file
  /// asks File::known_size_bytes() afterwards.
  /// @param to  at least size_bytes().
  [[nodiscard]] Result<void> copy_to(std::span<std::byte> to) const;

 private:
  friend class MappedRegion;  // makes them
  friend class KernelReply;   // fs/kernel/kernel_reply.h: the kernel copies, and its copy fails without a
                              // signal
  friend class interface::ForeignPages;  // tools/libstfs: the address goes to a program that asks
                                         // for it

  explicit MappedSpan(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

class MappedRegion {
 public:
  /// Maps the first size_bytes of the file; 0 gives an empty region.
  static Result<MappedRegion> map(const File& file, std::uint64_t size_bytes);

  MappedRegion() = default;
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;
  ~MappedRegion();

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// A range inside the region; nothing is read by this.
  [[nodiscard]] MappedSpan span(ByteRange range) const { return MappedSpan(bytes(range)); }
  /// Calls `copy` with the bytes of a range, under the rules of copy_guarded() (bus_guard.h).
  /// @return false where it did not come to its end, or where this program has no guard.
  using Copy = std::function<void(std::span<const std::byte> bytes)>;
  [[nodiscard]] bool copy_from(ByteRange range, const Copy& copy) const;
  /// The same addresses show that file from now on, which has the same bytes: a copy of the mapped one. Spans
  /// stay valid. The file need not stay open. After a failure the region is as before.
  [[nodiscard]] Result<void> remap(const File& file);
  /// Brings the range into memory and into this process's page table in one system call: a first
  /// touch costs one fault per 4 KiB otherwise (KERNEL-NOTES.md). EFAULT or EIO: the file does not
  /// cover the range any more, or its device failed. Kernels before 5.14 are asked by a plain read.
  [[nodiscard]] Result<void> populate(ByteRange range, const File& file) const;

 private:
  [[nodiscard]] std::span<const std::byte> bytes(ByteRange range) const;

  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace stfs
