// Reads tensors from their first byte to the last, several at a time: checksums, NaNs and infinities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/tensor/non_finite.h"
#include "tools/cli/progress.h"

namespace stfs::tools {

struct TensorScan {
  std::string checksum;  // "xxh128:" and 32 digits, as the attribute of a mount
  NonFinite non_finite;
  std::optional<Error> failure;  // it can't be read: the others hold nothing
};

/// XXH128 of one tensor is a chain, so a tensor is one thread's work; the largest come first, so that none is
/// left for the end. Memory does not grow with the tensors' size. What can't be read does not keep the rest
/// from being read.
/// @param tensors  positions in the model.
/// @param threads  at least 1; fewer where the system gives no more.
/// @return a result for each of them in that order; EINTR where interrupted() (interrupt.h).
Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             unsigned threads, Progress& progress);

}  // namespace stfs::tools
