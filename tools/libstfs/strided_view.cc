// Converts a slice's runs and loops to a stride for each dimension, and back.
#include "tools/libstfs/strided_view.h"

#include <algorithm>

#include "core/format/tensor_index.h"

namespace stfs::interface {
namespace {

std::vector<std::int64_t> packed_strides(std::span<const std::uint64_t> shape, std::uint64_t element_bytes) {
  std::vector<std::int64_t> strides(shape.size());
  std::uint64_t stride = element_bytes;
  for (std::size_t dimension = shape.size(); dimension-- > 0;) {
    strides[dimension] = static_cast<std::int64_t>(stride);
    stride *= std::max<std::uint64_t>(shape[dimension], 1);
  }
  return strides;
}

Slice whole_slice(std::span<const std::uint64_t> shape, std::uint64_t size_bytes) {
  Slice slice;
  slice.shape.assign(shape.begin(), shape.end());
  slice.element_count = element_count(shape);
  slice.size_bytes = slice.run_bytes = size_bytes;
  slice.extent = {0, size_bytes};
  return slice;
}

/// Returns the place of a slice's element, in bytes of the packed tensor that was sliced.
std::uint64_t place_of(const Slice& slice, std::uint64_t element, std::uint64_t element_bytes) {
  const std::uint64_t at_byte = element * element_bytes;
  return SliceCursor(slice, at_byte / slice.run_bytes).source_offset() + at_byte % slice.run_bytes;
}

}  // namespace

StridedView StridedView::whole(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t size_bytes) {
  StridedView view;
  view.dtype_ = dtype;
  view.shape_.assign(shape.begin(), shape.end());
  view.slice_ = whole_slice(shape, size_bytes);
  return view;
}

StridedView StridedView::packed() const {
  return whole(dtype_, shape_, size_bytes());
}

Result<StridedView> StridedView::sliced(std::string_view text) const {
  const bool is_whole = is_packed() && first_byte() == 0;
  // Parse as if this view's elements were packed. The code below inserts their real places.
  auto slice = parse_slice(text, dtype_, shape_);
  RETURN_IF_ERROR(slice);
  StridedView view;
  view.dtype_ = dtype_;
  view.shape_ = slice->shape;
  if (bits_of(dtype_) % 8 != 0) {
    if (!is_whole) {
      return fail(
          ErrorCode::InvalidArgument, ENOTSUP,
          "a slice of a slice is not supported for elements smaller than a byte: combine the two slices");
    }
    view.slice_ = std::move(*slice);
    return view;
  }
  const std::uint64_t element_bytes = bits_of(dtype_) / 8;
  const std::vector<std::int64_t> flat = packed_strides(shape_, element_bytes);
  const std::vector<std::int64_t>& strides = strides_bytes_.empty() ? flat : strides_bytes_;
  const auto real_place = [&](std::uint64_t packed_place) {
    std::int64_t place = static_cast<std::int64_t>(first_byte());
    for (std::size_t dimension = 0; dimension < shape_.size(); ++dimension) {
      const auto step = static_cast<std::uint64_t>(flat[dimension]);
      place += static_cast<std::int64_t>(packed_place / step) * strides[dimension];
      packed_place %= step;
    }
    return place;
  };
  view.strides_bytes_ = packed_strides(view.shape_, element_bytes);
  view.slice_.first_byte = first_byte();
  if (slice->element_count != 0) {
    const std::int64_t first = real_place(place_of(*slice, 0, element_bytes));
    view.slice_.first_byte = static_cast<std::uint64_t>(first);
    std::uint64_t element = slice->element_count;
    for (std::size_t dimension = 0; dimension < view.shape_.size(); ++dimension) {
      element /= view.shape_[dimension];
      if (view.shape_[dimension] == 1) continue;
      view.strides_bytes_[dimension] = real_place(place_of(*slice, element, element_bytes)) - first;
    }
  }
  view.set_slice();
  if (view.is_packed()) view.strides_bytes_.clear();
  return view;
}

void StridedView::set_slice() {
  const std::uint64_t element_bytes = bits_of(dtype_) / 8;
  slice_.shape = shape_;
  slice_.element_count = element_count(shape_);
  slice_.size_bytes = slice_.element_count * element_bytes;
  if (slice_.element_count == 0) {
    slice_.extent = {slice_.first_byte, 0};
    return;
  }
  slice_.run_bytes = element_bytes;
  std::uint64_t before_bytes = 0;  // bytes before the first element, reached through negative strides
  std::uint64_t after_bytes = element_bytes;
  for (std::size_t dimension = shape_.size(); dimension-- > 0;) {
    const std::uint64_t count = shape_[dimension];
    const std::int64_t stride = strides_bytes_[dimension];
    if (count == 1) continue;
    if (stride < 0) {
      before_bytes += (count - 1) * (0 - static_cast<std::uint64_t>(stride));
    } else {
      after_bytes += (count - 1) * static_cast<std::uint64_t>(stride);
    }
    if (slice_.loops.empty() && stride == static_cast<std::int64_t>(slice_.run_bytes)) {
      slice_.run_bytes *= count;
    } else {
      slice_.loops.push_back({count, stride});
    }
  }
  std::reverse(slice_.loops.begin(), slice_.loops.end());
  slice_.extent = {slice_.first_byte - before_bytes, before_bytes + after_bytes};
}

}  // namespace stfs::interface
