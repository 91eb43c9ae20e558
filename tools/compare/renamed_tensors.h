// Finds tensors that have another name in the other model, and the same dtype, shape and bytes.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/compare/model_difference.h"

namespace stfs::tools {

/// Reads the tensors that only A or only B has, if the other model also lacks one of the same dtype and
/// shape, and compares their XXH128. Each pair becomes one difference of the kind "renamed". If several
/// tensors have the same bytes, the first one of A is paired with the first one of B. A tensor without bytes,
/// or one that cannot be read, is not renamed.
/// @return EINTR if the work is stopped.
Result<void> find_renamed(const ModelPair& models, ModelDifference& difference, std::uint64_t threads,
                          Work& work);

}  // namespace stfs::tools
