// Collects the tensors of a header during parsing and makes a TensorIndex of them.
//
// It accepts all ranges that the header gives, valid or not. core/format/header.cc checks them afterwards in
// order of offset, because the reference checks them in that order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "core/format/tensor_index.h"

namespace stfs {

/// Two tensors with the same name: the position of each name in the header, the first one first.
struct DuplicateName {
  std::string name;
  std::uint32_t first_key_at = 0;
  std::uint32_t second_key_at = 0;
};

/// All functions may throw std::bad_alloc. A header has at most 100,000,000 bytes, so every position and
/// count fits 32 bits.
class TensorIndex::Builder {
 public:
  /// Starts a tensor. The calls below apply to the tensor that was started last.
  void begin_tensor(std::string_view name, std::uint32_t key_at);
  void set_dtype(Dtype dtype) { index_.entries_.back().dtype = dtype; }
  void begin_shape();
  void add_dimension(std::uint64_t size);
  void set_data_offsets(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::string_view name() const;
  /// Adds a whole tensor.
  void add(const Tensor& tensor, std::uint32_t key_at);

  /// Sorts by offset and indexes by name. If a range ends before it begins, its size overflows
  /// (ByteRange::checked() detects it).
  tl::expected<TensorIndex, DuplicateName> build() &&;

 private:
  TensorIndex index_;
};

}  // namespace stfs
