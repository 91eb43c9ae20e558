// Reads whole tensors, several at a time: computes checksums, and finds NaNs and infinities.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "core/model/model.h"
#include "core/tensor/non_finite.h"
#include "tools/cli/value_spectrum.h"

namespace stfs::tools {

struct TensorScan {
  std::uint32_t tensor = 0;  // position in the model
  std::string checksum;      // "xxh128:" and 32 digits, as in a mount's attribute
  NonFinite non_finite;
  std::optional<Error> failure;  // set if the tensor cannot be read; the other members are then meaningless
};

using TakeSpectrum = std::function<void(std::uint32_t tensor, const ValueSpectrum& spectrum)>;

/// Scans tensors. XXH128 must process a tensor in order, so one thread scans one tensor. The largest tensors
/// are scanned first, so that no large one is left for the end. Memory does not grow with the tensors' size.
/// A tensor that cannot be read does not stop the scan of the others.
/// @param tensors  positions in the model.
/// @param threads  at least 1; the system may give fewer.
/// @param take     gets the spectrum of each tensor whose dtype has one, with the tensor's position. One
///                 thread calls it at a time. Without it no spectrum is computed.
/// @return one result for each tensor, in the order of `tensors`; EINTR if the work, one pass, is stopped.
Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             std::uint64_t threads, Work& work,
                                             const TakeSpectrum& take = {});

}  // namespace stfs::tools
