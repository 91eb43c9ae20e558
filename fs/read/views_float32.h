// `.safetensors/float32/NAME.npy`: a floating tensor as float32, converted when it is read.
#pragma once

#include <cstdint>
#include <string>

#include "core/format/tensor_index.h"
#include "fs/read/tensor_reader.h"

namespace stfs {

/// The `.npy` header of that file.
std::string float32_header(const Tensor& tensor);

/// Copies bytes of the converted elements.
/// @param id      the tensor's.
/// @param offset  in the converted bytes; an element has 4.
Result<void> copy_float32(const Tensor& tensor, TensorId id, std::uint64_t offset, const TensorReader& reader,
                          std::span<std::byte> to);

}  // namespace stfs
