// A run of bytes in a file: an offset and a size whose sum is known not to overflow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace stfs {

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;

  /// The range, or nothing if offset + size does not fit 64 bits.
  static constexpr std::optional<ByteRange> checked(std::uint64_t offset, std::uint64_t size_bytes) {
    if (offset + size_bytes < offset) return std::nullopt;
    return ByteRange{offset, size_bytes};
  }

  [[nodiscard]] constexpr std::uint64_t end() const { return offset + size_bytes; }
  [[nodiscard]] constexpr bool empty() const { return size_bytes == 0; }
  [[nodiscard]] constexpr bool contains(ByteRange other) const {
    return other.offset >= offset && other.end() <= end();
  }
  [[nodiscard]] constexpr bool overlaps(ByteRange other) const {
    return offset < other.end() && other.offset < end();
  }
  /// The bytes that both ranges contain. If there are none: an empty range at the larger offset.
  [[nodiscard]] constexpr ByteRange intersection(ByteRange other) const {
    const std::uint64_t from = std::max(offset, other.offset);
    const std::uint64_t to = std::min(end(), other.end());
    return {from, to > from ? to - from : 0};
  }

  friend constexpr bool operator==(ByteRange, ByteRange) = default;
};

}  // namespace stfs
