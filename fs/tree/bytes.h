// The result of a read, and what caches must forget: the two words that all of the driver shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/reader_writer_lock.h"
#include "core/storage/mapped_region.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// What the kernel's caches must forget after a call, before its caller is answered.
struct Stale {
  enum class What : std::uint8_t { Nothing, Attributes, Content };
  Ino first = 0;  // the inodes from here
  Ino last = 0;   // to here
  What what = What::Nothing;

  static Stale one(Ino ino, What what) { return {ino, ino, what}; }
};

/// The result of a read, for KernelReply (kernel_reply.h): bytes of the map, which stay valid and untorn
/// while this lives, or bytes of its own.
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
  /// A buffer of this size, its contents unspecified: the one of this thread's last large reply where that is
  /// large enough. A new one is filled with zeros first, which takes as long as a read of what is cached.
  static std::vector<std::byte> buffer(std::uint64_t size_bytes) {
    std::vector<std::byte> buffer = std::exchange(spare_, {});
    buffer.resize(static_cast<std::size_t>(size_bytes));
    return buffer;
  }

  [[nodiscard]] std::size_t size_bytes() const { return owned_.size() + mapped_.size_bytes(); }
  /// A copy. MappedSpan::copy_to() says what it does not see.
  [[nodiscard]] Result<std::vector<std::byte>> copy() const {
    if (mapped_.empty()) return owned_;
    std::vector<std::byte> bytes(mapped_.size_bytes());
    if (auto copied = mapped_.copy_to(bytes); !copied) return pass_on(std::move(copied));
    return bytes;
  }

 private:
  friend class KernelReply;
  static constexpr std::size_t kLeastKeptBytes = 64 << 10;
  static constexpr std::size_t kMostKeptBytes = 1 << 20;  // the largest request
  inline static thread_local std::vector<std::byte> spare_;

  std::vector<std::byte> owned_;
  MappedSpan mapped_;  // one of the two is empty
  std::shared_lock<ReaderWriterLock> lock_;
};

}  // namespace stfs
