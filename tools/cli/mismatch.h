// How a tensor that came differs from the one that it is to replace.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/format/tensor_index.h"

namespace stfs::tools {

struct Mismatch {
  /// Of "missing", "dtype", "shape" and "size"; empty: none.
  std::vector<std::string_view> kinds;
  /// "other dtype and size: F32 [2,3], 24 bytes, came; BF16 [2,3], 12 bytes, is due".
  std::string text;
};

Mismatch mismatch_of(const Tensor& came, const Tensor& due);

}  // namespace stfs::tools
