// Grid-stride kernels: the number of blocks is enough for a large GPU and does not depend on the range's
// size.
#include "tools/device/digest.h"
#include "tools/device/kernels.h"

namespace stfs::device {
namespace {

constexpr unsigned kThreads = 256;
static_assert(kThreads == kDigestLanes, "a thread is a lane");

__device__ std::uint64_t load(const void* begin, unsigned element_bytes, std::uint64_t at) {
  switch (element_bytes) {
    case 1: return static_cast<const std::uint8_t*>(begin)[at];
    case 2: return static_cast<const std::uint16_t*>(begin)[at];
    case 4: return static_cast<const std::uint32_t*>(begin)[at];
    default: return static_cast<const std::uint64_t*>(begin)[at];
  }
}

__device__ void store(void* begin, unsigned element_bytes, std::uint64_t at, std::uint64_t bits) {
  switch (element_bytes) {
    case 1: static_cast<std::uint8_t*>(begin)[at] = static_cast<std::uint8_t>(bits); break;
    case 2: static_cast<std::uint16_t*>(begin)[at] = static_cast<std::uint16_t>(bits); break;
    default: static_cast<std::uint32_t*>(begin)[at] = static_cast<std::uint32_t>(bits); break;
  }
}

__global__ void convert(FloatRange from, FloatRange to, std::uint64_t count, unsigned long long* overflows) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  unsigned long long own = 0;
  for (std::uint64_t at = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    bool overflow = false;
    const std::uint64_t bits =
        convert_float(from.format, to.format, load(from.begin, from.element_bytes, at), overflow);
    store(to.begin, to.element_bytes, at, bits);
    own += overflow ? 1 : 0;
  }
  if (own > 0) atomicAdd(overflows, own);
}

/// Returns the word of a lane. Bytes after the end are zeros.
__device__ std::uint64_t word_at(const unsigned char* begin, std::uint64_t offset, std::uint64_t end) {
  if (offset + 8 <= end) return *reinterpret_cast<const std::uint64_t*>(begin + offset);
  std::uint64_t word = 0;
  for (unsigned byte = 0; offset + byte < end; ++byte)
    word |= std::uint64_t{begin[offset + byte]} << (8 * byte);
  return word;
}

__global__ void digest(const unsigned char* begin, std::uint64_t size_bytes, unsigned long long* sum) {
  __shared__ std::uint64_t mixed[kThreads];
  const unsigned lane = threadIdx.x;
  const std::uint64_t blocks = (size_bytes + kDigestBlockBytes - 1) / kDigestBlockBytes;
  for (std::uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const std::uint64_t first = block * kDigestBlockBytes;
    const std::uint64_t end = first + kDigestBlockBytes < size_bytes ? first + kDigestBlockBytes : size_bytes;
    std::uint64_t folded = digest_lane(lane);
    for (std::uint64_t row = first; row < end; row += kDigestRowBytes) {
      folded = digest_fold(folded, word_at(begin, row + lane * 8, end));
    }
    mixed[lane] = digest_mix(folded);
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half) mixed[lane] += mixed[lane + half];
    }
    if (lane == 0) atomicAdd(sum, static_cast<unsigned long long>(digest_block(mixed[0], block)));
    __syncthreads();
  }
}

/// @return the error of this launch. The thread's last error may be an older error of another call.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), std::uint64_t blocks, unsigned most_blocks,
                   cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks < most_blocks ? static_cast<unsigned>(blocks) : most_blocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace

cudaError_t start_conversion(const FloatRange& from, const FloatRange& to, std::uint64_t count,
                             unsigned long long* overflows, cudaStream_t stream, unsigned most_blocks) {
  if (count == 0) return cudaSuccess;
  return launch(convert, (count + kThreads - 1) / kThreads, most_blocks, stream, from, to, count, overflows);
}

cudaError_t start_digest(const void* begin, std::uint64_t size_bytes, unsigned long long* sum,
                         cudaStream_t stream, unsigned most_blocks) {
  if (size_bytes == 0) return cudaSuccess;
  const std::uint64_t blocks = (size_bytes + kDigestBlockBytes - 1) / kDigestBlockBytes;
  return launch(digest, blocks, most_blocks, stream, static_cast<const unsigned char*>(begin), size_bytes,
                sum);
}

}  // namespace stfs::device
