// Groups the tensors of a model by layer, by their names.
//
// In "model.layers.12.mlp.up_proj.weight" the first part that is a number ends the name of the layer,
// "model.layers.12". A name without a number belongs to the layer of the name without its
// last part: "lm_head.weight" to "lm_head".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/tensor_index.h"

namespace stfs::tools {

struct LayerName {
  std::string stem;                     // "model.layers", or the whole layer without a number
  std::optional<std::uint64_t> number;  // 12
  std::string rest;                     // "mlp.up_proj.weight"; numbers in it are *
};

LayerName layer_of(std::string_view tensor_name);
/// Returns the label, or the beginning and the end of a label of more than 256 bytes.
std::string short_label(std::string_view label);

struct Layer {
  std::string label;  // "model.layers.12", "model.layers.12-15", or "8 others"
  std::vector<std::uint32_t> tensors;
};

/// Groups these tensors. If there are more than `most` layers, neighbours are joined, and then the last ones.
/// @param most  at least 2.
std::vector<Layer> layers_of(const TensorIndex& tensors, std::span<const std::uint32_t> positions,
                             std::size_t most);

}  // namespace stfs::tools
