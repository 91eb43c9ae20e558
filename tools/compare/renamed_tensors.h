// Finds tensors that have another name in the other model, and the same dtype, shape and bytes.
#pragma once

#include <cstdint>
#include <functional>

#include "core/base/error.h"
#include "tools/compare/model_difference.h"
#include "tools/compare/parallel_jobs.h"

namespace stfs::tools {

/// Reads the tensors that only A or only B has, where the other model lacks one of the same dtype and shape,
/// and compares their XXH128. Each pair becomes one difference of the kind "renamed"; of several tensors with
/// the same bytes the first of A goes with the first of B. A tensor without bytes or one that cannot be read
/// is not renamed.
/// @param watch  as in ComparisonOptions.
/// @return EINTR if the watch has stopped the work.
Result<void> find_renamed(const ModelPair& models, ModelDifference& difference, std::uint64_t threads,
                          const std::function<Watch(std::uint64_t total_bytes)>& watch);

}  // namespace stfs::tools
