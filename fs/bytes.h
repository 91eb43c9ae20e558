// The result of a read, and what caches must forget: the two words that all of the driver shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/reader_writer_lock.h"
#include "fs/inode_table.h"

namespace stfs {

/// What the kernel's caches must forget after a call, before its caller is answered.
struct Stale {
  enum class What : std::uint8_t { Nothing, Attributes, Content };
  Ino first = 0;  // the inodes from here
  Ino last = 0;   // to here
  What what = What::Nothing;

  static Stale one(Ino ino, What what) { return {ino, ino, what}; }
};

/// The result of a read. Bytes of the map stay valid and untorn while this lives.
class Bytes {
 public:
  Bytes() = default;
  Bytes(std::span<const std::byte> mapped, std::shared_lock<ReaderWriterLock> lock)
      : mapped_(mapped), lock_(std::move(lock)) {}
  explicit Bytes(std::vector<std::byte> owned) : owned_(std::move(owned)), mapped_(owned_) {}
  Bytes(Bytes&&) noexcept = default;
  Bytes& operator=(Bytes&&) noexcept = default;
  ~Bytes() {
    if (owned_.size() >= kLeastKeptBytes && owned_.size() <= kMostKeptBytes) spare_ = std::move(owned_);
  }
  /// Of any size and content: what this thread's last large reply was made in. A new one is filled with zeros
  /// first, which takes as long as a read of what is cached.
  static std::vector<std::byte> take_spare() { return std::exchange(spare_, {}); }

  [[nodiscard]] std::span<const std::byte> span() const { return mapped_; }

 private:
  static constexpr std::size_t kLeastKeptBytes = 64 << 10;
  static constexpr std::size_t kMostKeptBytes = 1 << 20;  // the largest request
  inline static thread_local std::vector<std::byte> spare_;

  std::vector<std::byte> owned_;
  std::span<const std::byte> mapped_;
  std::shared_lock<ReaderWriterLock> lock_;
};

}  // namespace stfs
