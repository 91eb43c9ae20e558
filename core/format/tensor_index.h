// The tensors of one archive, by position and by name.
//
// A million tensors must stay small: 256 bytes each at the most, including the file system's part. So names
// and shapes are in two shared arenas, and an entry holds positions in them. Immutable once built: any number
// of threads may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/flat_array.h"
#include "core/format/dtype.h"

namespace stfs {

/// One tensor as the header describes it. A view, valid as long as its TensorIndex.
struct Tensor {
  std::string_view name;
  Dtype dtype = Dtype::U8;
  /// Logical elements per dimension, outermost first. Empty for a scalar.
  std::span<const std::uint64_t> shape;
  /// In bytes, relative to the first byte of the archive's data section.
  ByteRange data;
};

/// The product of the dimensions. Validating the header has shown that it fits 64 bits.
std::uint64_t element_count(std::span<const std::uint64_t> shape);

/// Returns a shape as the header writes it: "[4096,4096]".
std::string shape_text(std::span<const std::uint64_t> shape);
/// The shape that a person has written: "[4,16]", "4, 16", "[]". Nothing for other texts.
std::optional<std::vector<std::uint64_t>> shape_of_text(std::string_view text);

class TensorIndex {
 public:
  /// The header's parser adds tensors to it; build() makes the TensorIndex.
  class Builder;  // core/format/tensor_index_builder.h

  TensorIndex() = default;

  /// The number of tensors.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(entries_.size()); }
  /// The tensor at a position. Positions are in order of the data's begin, then its end, then the header.
  [[nodiscard]] Tensor operator[](std::uint32_t position) const;
  /// The position of the tensor with exactly this name.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
  /// The position of a tensor with exactly these bytes.
  [[nodiscard]] std::optional<std::uint32_t> find(ByteRange data) const;
  /// The number of elements of all tensors together (saturating).
  [[nodiscard]] std::uint64_t parameters() const;
  /// The heap memory held, in bytes.
  [[nodiscard]] std::uint64_t memory_bytes() const;

 private:
  struct Entry {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t name_at = 0;
    std::uint32_t name_size = 0;
    std::uint32_t shape_at = 0;
    std::uint32_t rank = 0;
    std::uint32_t key_at = 0;  // position of the name's opening quote in the header
    Dtype dtype = Dtype::U8;
  };
  [[nodiscard]] std::string_view name_at(const Entry& entry) const {
    return {names_.begin() + entry.name_at, entry.name_size};
  }
  /// Enters every name into slots_. @return the positions of two tensors with the same name, if there are
  /// any.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint32_t>> index_names();

  FlatArray<char> names_;
  FlatArray<std::uint64_t> dimensions_;
  FlatArray<Entry> entries_;  // ordered by (begin, end, key_at)
  // A hash table of the names with open addressing. Its size is a power of two above the number of tensors. A
  // slot of 0 is free. Otherwise the low bits (as many as a slot number has) are the tensor's position + 1,
  // and the other bits are bits of the name's hash, so that a slot of another name is rarely followed.
  FlatArray<std::uint32_t> slots_;
};

}  // namespace stfs
