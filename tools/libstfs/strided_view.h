// The part of a tensor that a handle shows, with the place of each element, as NumPy's shape and strides.
//
// core's Slice describes runs and loops, which is convenient for reading. A view has a stride for each
// dimension, which is convenient for computing. Each view can be converted to a Slice, and can be sliced
// again.
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

/// Immutable.
class StridedView {
 public:
  /// Returns a view of a whole tensor.
  static StridedView whole(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t size_bytes);

  /// @param text  in the syntax of parse_slice().
  /// @return the errors of parse_slice(); ENOTSUP for a slice of a slice if an element is smaller than a
  /// byte.
  [[nodiscard]] Result<StridedView> sliced(std::string_view text) const;
  /// Returns the view of a copy that has the same elements one after the other.
  [[nodiscard]] StridedView packed() const;

  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::uint64_t>& shape() const { return shape_; }
  /// One stride for each dimension. Empty if the elements are packed, or smaller than a byte.
  [[nodiscard]] const std::vector<std::int64_t>& strides_bytes() const { return strides_bytes_; }
  /// The size of the elements when packed.
  [[nodiscard]] std::uint64_t size_bytes() const { return slice_.size_bytes; }
  /// The offset of the first element in the tensor.
  [[nodiscard]] std::uint64_t first_byte() const { return slice_.first_byte; }
  /// Returns true if the elements are one run of bytes in order.
  [[nodiscard]] bool is_packed() const { return slice_.is_contiguous(); }
  /// Returns true if the address and the strides are enough to find each element.
  [[nodiscard]] bool is_addressable() const { return is_packed() || !strides_bytes_.empty(); }
  /// Returns the slice that reads these elements.
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
