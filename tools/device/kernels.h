// The kernels: the functions of conversion.h and digest.h over ranges of a GPU's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tools/device/conversion.h"

namespace stfs::device {

/// The most blocks of threads that a kernel starts: enough for a large GPU. Each block then continues with
/// further parts of the range. Tests use fewer blocks, so that small ranges also need further parts.
constexpr unsigned kMostKernelBlocks = 4096;

struct FloatRange {
  void* begin = nullptr;  // aligned to its elements
  FloatFormat format;
  unsigned element_bytes = 0;  // 1, 2, 4 or 8
};

/// Starts the conversion of `count` elements.
/// @param overflows  in the device's memory; the number of elements that `to` cannot hold is added to it.
cudaError_t start_conversion(const FloatRange& from, const FloatRange& to, std::uint64_t count,
                             unsigned long long* overflows, cudaStream_t stream,
                             unsigned most_blocks = kMostKernelBlocks);

/// Starts adding up the contributions of all blocks of a range to its digest.
/// @param begin  aligned to 8 bytes.
/// @param sum    in the device's memory, 0 before the call. The caller applies digest_end().
cudaError_t start_digest(const void* begin, std::uint64_t size_bytes, unsigned long long* sum,
                         cudaStream_t stream, unsigned most_blocks = kMostKernelBlocks);

}  // namespace stfs::device
