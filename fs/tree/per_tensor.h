// An array with an element for each tensor id. The array can grow while other threads use it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

#include "core/base/mutex.h"

namespace stfs {

/// Elements begin as T{} and never move. Any thread may use elements below size(), and let the array grow.
template <class T>
class PerTensor {
 public:
  explicit PerTensor(std::uint32_t size) { grow(size); }

  [[nodiscard]] std::uint32_t size() const { return size_.load(std::memory_order_acquire); }
  /// Throws std::out_of_range for a number that is not below size().
  T& operator[](std::size_t number) const {
    if (number >= size()) throw std::out_of_range("no tensor has this id");
    const std::size_t chunk = chunk_of(number);
    return chunks_[chunk][number - first_of(chunk)];
  }
  /// Does nothing if the array has this size already. May throw std::bad_alloc.
  void grow(std::uint32_t size) {
    const MutexLock lock(growth_);
    if (size <= size_) return;
    for (std::size_t chunk = 0; chunk <= chunk_of(size - 1); ++chunk) {
      if (!chunks_[chunk]) chunks_[chunk] = std::make_unique<T[]>(kFirstSize << chunk);
    }
    size_.store(size, std::memory_order_release);
  }

 private:
  // Each chunk is twice as large as the one before.
  static constexpr std::size_t kFirstSize = 1024;
  static constexpr std::size_t kChunks = 23;  // for all numbers of 32 bits
  static std::size_t chunk_of(std::size_t number) {
    return static_cast<std::size_t>(std::bit_width(number / kFirstSize + 1)) - 1;
  }
  static std::size_t first_of(std::size_t chunk) { return kFirstSize * ((std::size_t{1} << chunk) - 1); }

  std::array<std::unique_ptr<T[]>, kChunks> chunks_;
  std::atomic<std::uint32_t> size_ = 0;
  Mutex growth_;  // one thread at a time grows the array
};

}  // namespace stfs
