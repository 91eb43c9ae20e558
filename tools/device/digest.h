// A hash of a tensor's bytes that many threads of a CPU or a GPU can compute in parallel.
//
// The hash is a tree of three levels: 256 lanes make a block of 64 KiB, and blocks make the tensor. Row r of
// a block is 256 words of 8 bytes, one for each lane. A lane folds its words in order. Each level adds the
// mixed hashes of the level below, each mixed with its position. Therefore the order of the work does not
// matter, nor does a division of the work at whole blocks. A change within one word is always found, because
// every step is a bijection of the word's lane, block and sum. Any other change is missed with a chance of
// one in 2^64. The hash detects errors, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/device/on_devices.h"

namespace stfs::device {

inline constexpr unsigned kDigestLanes = 256;
inline constexpr std::uint64_t kDigestRowBytes = kDigestLanes * 8;
inline constexpr std::uint64_t kDigestBlockBytes = 64 << 10;

/// A bijection in which every bit depends on every bit (the finalizer of MurmurHash3, in the public domain).
STFS_ON_DEVICES constexpr std::uint64_t digest_mix(std::uint64_t value) {
  value ^= value >> 33U;
  value *= 0xFF51AFD7ED558CCDU;
  value ^= value >> 33U;
  value *= 0xC4CEB9FE1A85EC53U;
  return value ^ value >> 33U;
}

/// The initial value of a lane.
STFS_ON_DEVICES constexpr std::uint64_t digest_lane(unsigned lane) {
  return (lane + 1) * 0x9E3779B97F4A7C15U;
}
/// Folds the lane's next word in. The odd multiplier keeps the step a bijection. Bytes after the end are 0.
STFS_ON_DEVICES constexpr std::uint64_t digest_fold(std::uint64_t lane, std::uint64_t word) {
  const std::uint64_t mixed = (lane ^ word) * 0x9FB21C651E98DF25U;
  return mixed ^ mixed >> 35U;
}
/// Returns the part of the digest that a block adds, from the sum of the block's mixed lanes.
STFS_ON_DEVICES constexpr std::uint64_t digest_block(std::uint64_t sum_of_lanes, std::uint64_t block) {
  return digest_mix(digest_mix(sum_of_lanes) + (block + 1) * 0xD6E8FEB86659FD93U);
}
/// Returns the digest, from the sum over all blocks.
STFS_ON_DEVICES constexpr std::uint64_t digest_end(std::uint64_t sum_of_blocks, std::uint64_t size_bytes) {
  return digest_mix(sum_of_blocks + digest_mix(size_bytes + 1));
}

}  // namespace stfs::device

#if !defined(__CUDACC__)
#include <span>

namespace stfs::device {

/// Returns the part of the sum over all blocks that these blocks add, modulo 2^64.
/// @param bytes        begins at a block boundary; also ends at one, unless it ends with the tensor.
/// @param first_block  number of the first block in `bytes`.
std::uint64_t digest_sum(std::span<const std::byte> bytes, std::uint64_t first_block);

/// Returns the digest of a whole tensor.
std::uint64_t digest_of(std::span<const std::byte> bytes);

}  // namespace stfs::device
#endif
