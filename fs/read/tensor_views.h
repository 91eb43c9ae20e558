// The views of one tensor below `.safetensors/`. Each read makes only the bytes that it returns.
//
//   npy/NAME.npy           the tensor with a NumPy header before it
// float32/NAME.npy       a floating tensor converted to float32, with a NumPy header before it
//   slice/NAME[0:10,:,3]   some elements; with `.npy` appended, with a NumPy header
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/tensor_index.h"
#include "core/tensor/slice.h"
#include "fs/read/tensor_reader.h"
#include "fs/tree/bytes.h"

namespace stfs {

/// The parts of a file name in slice/: `NAME[TEXT]` or `NAME[TEXT].npy`, split at the last `[`.
struct SliceName {
  std::string_view tensor;  // the tensor's flat file name
  std::string_view text;
  bool is_npy = false;
  bool is_closed = false;  // ends with a `]`
};
/// Returns nothing if the name has no `[`.
std::optional<SliceName> split_slice_name(std::string_view file_name);

/// One view. A copy of the object reads the same bytes.
class TensorView {
 public:
  static TensorView npy(TensorId id, const Tensor& tensor);
  /// The tensor must be floating.
  static TensorView float32(TensorId id, const Tensor& tensor);
  /// Parses the slice. EINVAL if the text is not a slice of that tensor.
  static Result<TensorView> slice(const SliceName& name, TensorId id, const Tensor& tensor);

  [[nodiscard]] TensorId tensor() const { return tensor_; }
  /// The shape of a slice's selection.
  [[nodiscard]] const std::vector<std::uint64_t>& slice_shape() const { return slice_.shape; }
  [[nodiscard]] std::uint64_t size_bytes() const { return head_.size() + body_bytes_; }
  /// @param range  must be inside the file.
  [[nodiscard]] Result<Bytes> read(ByteRange range, const TensorReader& reader) const;

 private:
  TensorView(TensorId id, Dtype dtype) : tensor_(id), dtype_(dtype) {}
  /// Copies bytes that follow the head.
  Result<void> copy(std::uint64_t offset, const TensorReader& reader, std::span<std::byte> to) const;
  Result<void> copy_slice(std::uint64_t offset, const TensorReader& reader, std::span<std::byte> to) const;
  Result<void> copy_float32(std::uint64_t offset, const TensorReader& reader, std::span<std::byte> to) const;

  TensorId tensor_;
  Dtype dtype_;
  bool is_float32_ = false;
  std::string head_;  // a NumPy header, or empty
  std::uint64_t body_bytes_ = 0;
  Slice slice_;  // without loops if the file has the whole tensor
};

}  // namespace stfs
