// The tensors of a sample model: a small transformer, and one specimen of each rare case.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/format/header.h"

namespace stfs::tools {

/// Sizes of the transformer. Queries have hidden / 64 heads (at least one). Keys and values have a quarter of
/// the width. The feed-forward part has 8/3 of the width, as in Llama.
struct SampleSize {
  std::uint64_t layers = 2;
  std::uint64_t hidden = 64;  // a multiple of 8
  std::uint64_t vocabulary = 512;
};

/// Returns the transformer's tensors: model.layers.N.self_attn.q_proj.weight and so on. Attention is BF16,
/// the feed-forward part F16, normalization F32.
std::vector<TensorSpec> transformer(const SampleSize& size);

/// Returns one tensor of each of the 22 dtypes, scalars, empty tensors, and names that are legal but awkward.
std::vector<TensorSpec> specimens();

/// Returns the bytes of data of all tensors together. The size of every sample tensor is known to be valid.
std::uint64_t total_bytes(const std::vector<TensorSpec>& tensors);

/// Chooses layers and vocabulary so that the transformer and other_bytes of other tensors together have
/// data_bytes of data. The result is smaller by less than one word of the vocabulary (4 bytes per unit of
/// hidden: embedding and head).
/// @param hidden  0: choose a width that suits the size.
/// @return InvalidArgument if the size is too small for a model of one layer.
Result<SampleSize> sized_to(std::uint64_t data_bytes, std::uint64_t other_bytes, std::uint64_t hidden);

}  // namespace stfs::tools
