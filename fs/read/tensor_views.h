// `.safetensors/float32/NAME.npy`: a floating tensor as float32, converted when it is read.
// `.safetensors/slice/NAME[0:10,:,3]`: some elements of a tensor as a file. Each read gathers its elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/format/tensor_index.h"
#include "core/tensor/slice.h"
#include "fs/read/tensor_reader.h"

namespace stfs {

/// The `.npy` header of that file.
std::string float32_header(const Tensor& tensor);

/// Copies bytes of the converted elements.
/// @param id      the tensor's.
/// @param offset  in the converted bytes; an element has 4.
Result<void> copy_float32(const Tensor& tensor, TensorId id, std::uint64_t offset, const TensorReader& reader,
                          std::span<std::byte> to);

/// The parts of a file name in slice/: `NAME[TEXT]` or `NAME[TEXT].npy`, split at the last `[`.
struct SliceName {
  std::string_view tensor;  // the tensor's flat file name
  std::string_view text;
  bool is_npy = false;
  bool is_closed = false;  // ends with a `]`
};
/// Returns nothing if the name has no `[`.
std::optional<SliceName> split_slice_name(std::string_view file_name);

struct SliceFile {
  TensorId tensor{};
  Slice slice;
  std::string head;  // the header of a `.npy` file, else empty

  [[nodiscard]] std::uint64_t size_bytes() const { return head.size() + slice.size_bytes; }
};

/// Parses the slice. EINVAL if the text is not a slice of that tensor.
Result<SliceFile> slice_file(const SliceName& name, TensorId id, const Tensor& tensor);

/// Copies bytes of the slice's elements, without the head.
/// @param offset  in the elements.
Result<void> copy_slice(const SliceFile& file, std::uint64_t offset, const TensorReader& reader,
                        std::span<std::byte> to);

}  // namespace stfs
