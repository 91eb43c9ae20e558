// Types that the whole driver shares. Stale and Outdated name the caches that the kernel must forget, and
// Bytes is the result of a read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/reader_writer_lock.h"
#include "core/storage/mapped_region.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// The caches that the kernel must forget after a call. The kernel is told before the caller gets its reply.
struct Stale {
  enum class What : std::uint8_t { Nothing, Attributes, Content };
  Ino first = 0;  // the first inode of the range
  Ino last = 0;   // the last inode of the range, included
  What what = What::Nothing;

  static Stale one(Ino ino, What what) { return {ino, ino, what}; }
};

/// The caches that the kernel must forget after an edit. An entry is forgotten after the reply if the kernel
/// holds the lock of its directory during the request (kernel/fuse_handlers.h).
struct Outdated {
  std::vector<Stale> stale;
  std::vector<std::pair<Ino, std::string>> entries;  // a directory and a name in it
};

/// The result of a read, which KernelReply (kernel_reply.h) sends. It holds either a part of the map or a
/// copy of bytes. The part of the map stays valid and unchanged while this object lives.
class Bytes {
 public:
  Bytes() = default;
  Bytes(MappedSpan mapped, std::shared_lock<ReaderWriterLock> lock)
      : mapped_(mapped), lock_(std::move(lock)) {}
  explicit Bytes(std::vector<std::byte> owned) : owned_(std::move(owned)) {}
  Bytes(Bytes&&) noexcept = default;
  Bytes& operator=(Bytes&&) noexcept = default;
  ~Bytes() {
    if (owned_.size() >= kLeastKeptBytes && owned_.size() <= kMostKeptBytes) spare_ = std::move(owned_);
  }
  /// Returns a buffer of this size; its contents are unspecified. Reuses the buffer of this thread's previous
  /// large reply if there is one. A new buffer is filled with zeros first, which takes as long as a read of
  /// cached data.
  static std::vector<std::byte> buffer(std::uint64_t size_bytes) {
    std::vector<std::byte> buffer = std::exchange(spare_, {});
    buffer.resize(static_cast<std::size_t>(size_bytes));
    return buffer;
  }

  [[nodiscard]] std::size_t size_bytes() const { return owned_.size() + mapped_.size_bytes(); }
  /// Returns a copy of the bytes. MappedSpan::copy_to() says which failures it cannot detect.
  [[nodiscard]] Result<std::vector<std::byte>> copy() const {
    if (mapped_.empty()) return owned_;
    std::vector<std::byte> bytes(mapped_.size_bytes());
    RETURN_IF_ERROR(mapped_.copy_to(bytes));
    return bytes;
  }

 private:
  friend class KernelReply;
  static constexpr std::size_t kLeastKeptBytes = 64 << 10;
  static constexpr std::size_t kMostKeptBytes = 1 << 20;  // the largest request
  inline static thread_local std::vector<std::byte> spare_;

  std::vector<std::byte> owned_;
  MappedSpan mapped_;  // owned_ or mapped_ is empty
  std::shared_lock<ReaderWriterLock> lock_;
};

}  // namespace stfs
