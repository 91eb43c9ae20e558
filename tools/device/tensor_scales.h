// The scales of quantized tensors: finds the scales, their tensors, and the elements that they multiply.
//
// The format knows no scales. Quantizers agree on names, and the shapes define the blocks:
//
//   scales of X            | by                        | shape of the scales
//   -----------------------+---------------------------+-----------------------------------------------------
//   X_scale_inv            | DeepSeek, transformers    | one element, or a block of 128 x 128 each
//   P.scale (X is P.weight)| DeepSeek's own inference  | the same
//   P.scale_weight         | ComfyUI                   | the same
//   X_scale                | compressed-tensors,       | one element; [M,1], one for each row; a block of
//                          | fbgemm, ModelOpt          | 128 x 128 each; as F8_E8M0 also 32 elements each
//   X_scales               | the OCP's MX formats      | F8_E8M0, one for 32 elements of the last dimension
//
// Other names of scales are also known (X.scale, X.absmax, P.w_scale), but not the elements that they
// multiply. All scales multiply; "inv" is only a name. Blocks of 128 x 128 are in the last two dimensions,
// and the last block of a dimension may be shorter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/format/tensor_index.h"

namespace stfs::device {

struct TensorScales {
  std::uint32_t tensor = 0;           // the position of the scales
  std::vector<std::uint64_t> blocks;  // this many elements of each dimension share a scale
};

/// Returns true if the tensor is a part of quantized values: by its dtype (F8_E8M0), by a name that only
/// scales have ("weight_scale_inv", "k_scale"), or by a name with "scale" beside a quantized tensor ("scales"
/// beside "qweight"). "logit_scale" and "norm.scale" are ordinary tensors.
bool is_scale(const TensorIndex& index, const Tensor& tensor);

/// Returns the tensors without which the elements of an FP8, F6 or F4 tensor are not its values: its scales,
/// scales of scales, and zero points. Nothing for tensors of other dtypes.
std::vector<std::uint32_t> scales_of(const TensorIndex& index, const Tensor& tensor);

/// Returns "w is F8_E4M3 and needs its scales w_scale_inv, and 3 more are alike", for a tensor that has
/// scales.
/// @param more  the number of other tensors that need their scales.
std::string needs_scales_text(const TensorIndex& index, const Tensor& tensor, std::size_t more);

/// Returns the way to apply the scales of a tensor that has some. EINVAL, with the reason: the names or the
/// shapes are not in the table above.
Result<TensorScales> known_scales_of(const TensorIndex& index, const Tensor& tensor);

/// Returns the reason why tensors of integers that hold quantized values (because of a scale beside them)
/// can't be converted; nothing for other tensors.
std::optional<std::string> packed_fault(const TensorIndex& index, const Tensor& tensor);

/// Multiplies values[i], element first + i of a tensor, by its scale.
void apply_scales(std::span<const std::uint64_t> shape, std::span<const std::uint64_t> blocks,
                  std::span<const float> scales, std::uint64_t first, std::span<float> values);

}  // namespace stfs::device
