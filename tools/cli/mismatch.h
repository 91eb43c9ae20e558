// Describes how a supplied tensor differs from the tensor that it would replace.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/format/tensor_index.h"

namespace stfs::tools {

struct Mismatch {
  /// Any of "missing", "dtype", "shape" and "size". Empty: the tensors match.
  std::vector<std::string_view> kinds;
  /// For people: "other dtype and size: F32 [2,3], 24 bytes, came; BF16 [2,3], 12 bytes, is due".
  std::string text;
};

Mismatch mismatch_of(const Tensor& came, const Tensor& due);

}  // namespace stfs::tools
