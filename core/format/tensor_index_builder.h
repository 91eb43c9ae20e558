// Collects the tensors of a header while it is read and makes a TensorIndex of them.
//
// It takes what the header says as it comes, sensible or not: the ranges are judged afterwards, in
// order of offset (core/format/header.cc), because that is the order in which the reference judges them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "core/format/tensor_index.h"

namespace stfs {

/// Two tensors of one name, by the positions just past each name in the header, the first one first.
struct DuplicateName {
  std::string name;
  std::uint32_t first_key_end = 0;
  std::uint32_t second_key_end = 0;
};

/// Everything here may throw std::bad_alloc. A header is at most 100,000,000 bytes, so that every
/// position and count fits 32 bits.
class TensorIndex::Builder {
 public:
  /// Starts a tensor; the calls below are about the one started last.
  void begin_tensor(std::string_view name, std::uint32_t key_end);
  void set_dtype(Dtype dtype) { index_.entries_.back().dtype = dtype; }
  void begin_shape();
  void add_dimension(std::uint64_t size);
  void set_data_offsets(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::string_view name() const;

  /// Sorts by offset and indexes by name. A range whose end lies before its begin comes out with a
  /// size that overflows (ByteRange::checked tells).
  tl::expected<TensorIndex, DuplicateName> build() &&;

 private:
  TensorIndex index_;
};

}  // namespace stfs
