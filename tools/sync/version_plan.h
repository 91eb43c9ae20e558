// Which tensors of two models go into which shard of a version.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "tools/compare/tensor_comparison.h"

namespace stfs::sync {

struct PlannedShard {
  std::vector<tools::TensorPair> tensors;  // the largest first
  std::uint64_t size_bytes = 0;            // of the tensors
  std::uint64_t header_bytes = 0;          // VersionShard::create()
};

/// Pairs the tensors of two models by name. EINVAL: one model lacks a tensor, or has it with another dtype or
/// shape; the message names the first such tensors.
Result<std::vector<tools::TensorPair>> paired_tensors(const tools::ModelPair& models);

/// Divides the tensors among shards of about equal size, the largest shard first. There are a few shards for
/// each thread, but none is small.
std::vector<PlannedShard> plan_shards(const Model& model, std::vector<tools::TensorPair> pairs,
                                      std::uint64_t threads);

}  // namespace stfs::sync
