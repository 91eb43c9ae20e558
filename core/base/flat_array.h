// A growable array for the millions of small records of a large header.
//
// std::vector grows by copying, and holds the old and the new block during the copy. That alone would break
// the promise that a header is parsed in four times its size. realloc(3) moves a large block's pages instead
// (mremap), and frees a block's unused end in the same way.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

namespace stfs {

template <class T>
class FlatArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved by realloc");

 public:
  FlatArray() = default;
  FlatArray(FlatArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  FlatArray& operator=(FlatArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~FlatArray() { std::free(data_); }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t capacity_bytes() const { return capacity_ * sizeof(T); }
  [[nodiscard]] T* begin() { return data_; }
  [[nodiscard]] T* end() { return data_ + size_; }
  [[nodiscard]] const T* begin() const { return data_; }
  [[nodiscard]] const T* end() const { return data_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) { return data_[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data_[i]; }
  [[nodiscard]] T& back() { return data_[size_ - 1]; }

  /// May throw std::bad_alloc, like every call that grows the array.
  void push_back(T value) {
    if (size_ == capacity_) grow(size_ + 1);
    data_[size_++] = value;
  }
  void append(const T* from, std::size_t count) {
    if (count == 0) return;
    if (count > capacity_ - size_) grow(size_ + count);
    std::memcpy(data_ + size_, from, count * sizeof(T));
    size_ += count;
  }
  /// Sets the content to `count` elements of zero bytes.
  void assign_zero(std::size_t count) {
    size_ = 0;
    if (count == 0) return;
    if (count > capacity_) resize_block(count);
    std::memset(static_cast<void*>(data_), 0, count * sizeof(T));
    size_ = count;
  }
  /// Frees the memory behind the last element.
  void trim() {
    if (size_ != 0 && size_ != capacity_) resize_block(size_);
  }

 private:
  void grow(std::size_t at_least) {
    const std::size_t more = capacity_ + capacity_ / 2 + 16;
    resize_block(more > at_least ? more : at_least);
  }
  void resize_block(std::size_t capacity) {
    if (capacity > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    void* block = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (block == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(block);
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace stfs
