// Reads a dtype that a person has typed.
#pragma once

#include <optional>
#include <string_view>

#include "core/format/dtype.h"

namespace stfs {

/// The header's name of a dtype in any case, or its name in NumPy, ml_dtypes or PyTorch, also with "torch."
/// before it: "bf16", "bfloat16", "float32", "fp16", "half", "float8_e4m3fn". Names whose meaning differs
/// between these libraries ("float", "int", "long") are no dtype.
std::optional<Dtype> parse_dtype(std::string_view text);

}  // namespace stfs
