// What runs on a GPU: the functions of conversion.h and digest.h over ranges of its memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tools/device/conversion.h"

namespace stfs::upload {

struct FloatRange {
  void* begin = nullptr;  // aligned to its elements
  FloatFormat format;
  unsigned element_bytes = 0;  // 1, 2, 4 or 8
};

/// Starts the conversion of `count` elements.
/// @param overflows  on the device; how many could not be held is added to it.
cudaError_t start_conversion(const FloatRange& from, const FloatRange& to, std::uint64_t count,
                             unsigned long long* overflows, cudaStream_t stream);

/// Starts summing up what all blocks of a range add to its digest.
/// @param begin  aligned to 8 bytes.
/// @param sum    on the device, 0 before; digest_end() is left to the caller.
cudaError_t start_digest(const void* begin, std::uint64_t size_bytes, unsigned long long* sum,
                         cudaStream_t stream);

}  // namespace stfs::upload
