// Reads whole tensors, several at a time: computes checksums, and finds NaNs and infinities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "core/model/model.h"
#include "core/tensor/non_finite.h"

namespace stfs::tools {

struct TensorScan {
  std::uint32_t tensor = 0;  // position in the model
  std::string checksum;      // "xxh128:" and 32 digits, as in a mount's attribute
  NonFinite non_finite;
  std::optional<Error> failure;  // set if the tensor cannot be read; the other members are then meaningless
};

/// XXH128 must process a tensor in order, so one thread scans one tensor. The largest tensors come first, so
/// that no large one is left for the end. Memory does not grow with the tensors' size. A tensor that cannot
/// be read does not stop the scan of the others.
/// @param tensors  positions in the model.
/// @param threads  at least 1; fewer are used if the system gives no more.
/// @return one result for each tensor, in the order of `tensors`; EINTR if the work, one pass, is stopped.
Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             std::uint64_t threads, Work& work);

}  // namespace stfs::tools
