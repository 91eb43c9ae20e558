// `.safetensors/float32/NAME.npy`: a floating tensor as float32, converted when it is read.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor_index.h"
#include "fs/views_source.h"

namespace stfs {

/// The `.npy` header of that file.
std::string float32_header(const Tensor& tensor);

/// Bytes of the converted elements.
/// @param range  inside them: 4 bytes per element.
Result<Bytes> read_float32(const Tensor& tensor, std::uint32_t position, ByteRange range,
                           const ViewSource& source);

}  // namespace stfs
