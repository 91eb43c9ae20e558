// Which bytes of a tensor a handle shows, and where each of its elements is: what NumPy calls shape and
// strides.
//
// core's Slice knows runs and loops, which is what reading wants; a view has a stride for each dimension,
// which is what whoever computes with it wants. Each view can be told as a Slice, and sliced again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/tensor/slice.h"

namespace stfs::interface {

/// Never changes once made.
class StridedView {
 public:
  /// All of a tensor.
  static StridedView whole(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t size_bytes);

  /// @param text  as parse_slice() understands it.
  /// @return its errors; ENOTSUP for a slice of a slice of elements of less than a byte.
  [[nodiscard]] Result<StridedView> sliced(std::string_view text) const;
  /// The same elements one after the other in memory of their own.
  [[nodiscard]] StridedView packed() const;

  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::uint64_t>& shape() const { return shape_; }
  /// One for each dimension. None where the elements are packed, or of less than a byte.
  [[nodiscard]] const std::vector<std::int64_t>& strides_bytes() const { return strides_bytes_; }
  /// Of its elements, packed.
  [[nodiscard]] std::uint64_t size_bytes() const { return slice_.size_bytes; }
  /// Of the first element in the tensor.
  [[nodiscard]] std::uint64_t first_byte() const { return slice_.first_byte; }
  /// One run of bytes, in order.
  [[nodiscard]] bool is_packed() const { return slice_.is_contiguous(); }
  /// Address and strides are enough to find each element.
  [[nodiscard]] bool is_addressable() const { return is_packed() || !strides_bytes_.empty(); }
  /// What is read to have it.
  [[nodiscard]] const Slice& slice() const { return slice_; }

 private:
  StridedView() = default;
  void set_slice();

  Dtype dtype_ = Dtype::U8;
  std::vector<std::uint64_t> shape_;
  std::vector<std::int64_t> strides_bytes_;
  Slice slice_;
};

}  // namespace stfs::interface
