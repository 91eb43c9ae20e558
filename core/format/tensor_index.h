// The tensors of one archive, by place and by name.
//
// A million tensors must stay small (BENCH.md: 256 bytes each, the file system's part included), so
// names and shapes lie in two shared arenas, and an entry holds positions in them. Immutable once
// built; any number of threads may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/byte_range.h"
#include "core/base/flat_array.h"
#include "core/format/dtype.h"

namespace stfs {

/// One tensor as the header describes it. A view: valid as long as its TensorIndex.
struct Tensor {
  std::string_view name;
  Dtype dtype = Dtype::U8;
  /// Logical elements per dimension, outermost first; empty for a scalar.
  std::span<const std::uint64_t> shape;
  /// Relative to the first byte of the archive's data section.
  ByteRange data;
};

/// Product of the dimensions; the header's validation has shown that it fits 64 bits.
std::uint64_t element_count(std::span<const std::uint64_t> shape);

/// "[4096,4096]": as the header writes a shape.
std::string shape_text(std::span<const std::uint64_t> shape);

class TensorIndex {
 public:
  /// What the header's parser appends to while it reads; becomes a TensorIndex when it is whole.
  class Builder;  // core/format/tensor_index_builder.h

  TensorIndex() = default;

  /// Number of tensors.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(entries_.size()); }
  /// The tensor at a position in the order of data offsets (ties: by end, then header order).
  [[nodiscard]] Tensor operator[](std::uint32_t position) const;
  /// Position of the tensor of that exact name.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
  /// Number of elements of all tensors together (saturating).
  [[nodiscard]] std::uint64_t parameters() const;
  /// Heap memory held, in bytes.
  [[nodiscard]] std::uint64_t memory_bytes() const;

 private:
  struct Entry {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t name_at = 0;
    std::uint32_t name_size = 0;
    std::uint32_t shape_at = 0;
    std::uint32_t rank = 0;
    std::uint32_t key_end = 0;  // position in the header just past the name's closing quote
    Dtype dtype = Dtype::U8;
  };
  [[nodiscard]] std::string_view name_at(const Entry& entry) const {
    return {names_.begin() + entry.name_at, entry.name_size};
  }
  /// Enters every name into slots_. @return the positions of two tensors of one name, if any.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint32_t>> index_names();

  FlatArray<char> names_;
  FlatArray<std::uint64_t> dimensions_;
  FlatArray<Entry> entries_;  // in order of (begin, end, key_end)
  // Open addressing over the names; the number of slots is a power of two above the number of tensors.
  // 0 is free; else the low bits, as many as number the slots, are the tensor's position + 1, and the
  // rest are bits of its name's hash, so that a slot of another name is seldom looked into.
  FlatArray<std::uint32_t> slots_;
};

}  // namespace stfs
