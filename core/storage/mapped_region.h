// A read-only shared mapping of a whole file, and ranges of it.
//
// The mapping keeps the file's inode alive, not its length. Reading a page that the file no longer covers, or
// that its disk can't deliver, raises SIGBUS. The address goes only to users that never read there in this
// process: the kernel, and programs that ask for the pages themselves. All other code copies.
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

/// Bytes of a mapping. Valid as long as the mapping.
class MappedSpan {
 public:
  MappedSpan() = default;

  [[nodiscard]] std::size_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  /// Copies with copy_by_kernel(). If the file has been cut, bytes behind its new end in the last page read
  /// as zeros: callers check File::known_size_bytes() afterwards.
  /// @param to  at least size_bytes().
  [[nodiscard]] Result<void> copy_to(std::span<std::byte> to) const;

 private:
  friend class MappedRegion;  // constructs spans
  /// fs/kernel/kernel_reply.h: the kernel copies, and its copy fails without a signal.
  friend class KernelReply;
  /// tools/libstfs: the address goes to a program that asks for it.
  friend class interface::ForeignPages;

  explicit MappedSpan(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

class MappedRegion {
 public:
  /// Maps the first size_bytes of the file. 0 gives an empty region.
  static Result<MappedRegion> map(const File& file, std::uint64_t size_bytes);

  MappedRegion() = default;
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;
  ~MappedRegion();

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Returns a range inside the region. Reads nothing.
  [[nodiscard]] MappedSpan span(ByteRange range) const { return MappedSpan(bytes(range)); }
  /// Calls `copy` with the bytes of a range, under the rules of copy_guarded() (bus_guard.h).
  /// @return false if `copy` was interrupted, or if this program has no guard.
  using Copy = std::function<void(std::span<const std::byte> bytes)>;
  [[nodiscard]] bool copy_from(ByteRange range, const Copy& copy) const;
  /// Maps `file` at the same addresses. `file` must have the same bytes: a copy of the mapped file. Spans
  /// stay valid. The file need not stay open. After a failure the region is unchanged.
  [[nodiscard]] Result<void> remap(const File& file);
  /// Brings the range into memory and into this process's page table in one system call: otherwise each 4 KiB
  /// costs a fault at first touch (fs/KERNEL.md). EFAULT or EIO: the file no longer covers the range, or
  /// its device failed. On kernels before 5.14 it reads the range instead.
  [[nodiscard]] Result<void> populate(ByteRange range, const File& file) const;

 private:
  [[nodiscard]] std::span<const std::byte> bytes(ByteRange range) const;

  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace stfs
