// Reads a dtype that a person has typed.
#pragma once

#include <optional>
#include <string_view>

#include "core/format/dtype.h"

namespace stfs {

/// Accepts a dtype's name in the header, in any case, and its names in NumPy, ml_dtypes and PyTorch, also
/// after "torch.": "bf16", "bfloat16", "float32", "fp16", "half", "float8_e4m3fn". Rejects names whose
/// meaning differs between these libraries ("float", "int", "long").
std::optional<Dtype> parse_dtype(std::string_view text);

}  // namespace stfs
