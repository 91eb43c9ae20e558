// The tensors of a sample model: a small transformer, and one of everything that is rare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/format/header.h"

namespace stfs::tools {

/// Sizes of the transformer. Queries have hidden / 64 heads (at least one), keys and values a quarter
/// of the width; the feed-forward part is 8/3 wide, as Llama's.
struct SampleSize {
  std::uint64_t layers = 2;
  std::uint64_t hidden = 64;  // a multiple of 8
  std::uint64_t vocabulary = 512;
};

/// The transformer's tensors: model.layers.N.self_attn.q_proj.weight and so on; attention in BF16, the
/// feed-forward part in F16, normalization in F32.
std::vector<TensorSpec> transformer(const SampleSize& size);

/// One tensor of each of the 22 dtypes, scalars, empty tensors, and names that are legal and awkward.
std::vector<TensorSpec> specimens();

/// Bytes of data of all tensors together; every sample tensor's size is known to be valid.
std::uint64_t total_bytes(const std::vector<TensorSpec>& tensors);

/// Layers and vocabulary such that transformer and specimens have data_bytes of data, short of it by
/// less than one word of the vocabulary (4 bytes per unit of hidden: embedding and head).
/// @param hidden  0 chooses one that suits the size.
/// InvalidArgument where the size is too small for a model of one layer.
Result<SampleSize> sized_to(std::uint64_t data_bytes, std::uint64_t hidden);

}  // namespace stfs::tools
