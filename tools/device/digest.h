// A hash of a tensor's bytes that many threads, of a CPU or a GPU, can work on at a time.
//
// A tree of three levels: 256 lanes make a block of 64 KiB, blocks make the tensor. Row r of a block is 256
// words of 8 bytes, one for each lane, which folds its words in order; a level sums up the mixed hashes of
// the one below, each with its place. So the order of the work is of no account, and where it was cut at
// whole blocks neither; a change within one word is always found (every step is a bijection of the word's
// lane, block and sum), other changes but for one chance in 2^64. It finds errors, not forgers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/device/on_devices.h"

namespace stfs::upload {

inline constexpr unsigned kDigestLanes = 256;
inline constexpr std::uint64_t kDigestRowBytes = kDigestLanes * 8;
inline constexpr std::uint64_t kDigestBlockBytes = 64 << 10;

/// A bijection that lets every bit depend on every bit (the finalizer of MurmurHash3, in the public domain).
STFS_ON_DEVICES constexpr std::uint64_t digest_mix(std::uint64_t value) {
  value ^= value >> 33U;
  value *= 0xFF51AFD7ED558CCDU;
  value ^= value >> 33U;
  value *= 0xC4CEB9FE1A85EC53U;
  return value ^ value >> 33U;
}

/// What a lane begins with.
STFS_ON_DEVICES constexpr std::uint64_t digest_lane(unsigned lane) {
  return (lane + 1) * 0x9E3779B97F4A7C15U;
}
/// Folds the lane's next word in. Odd multipliers keep it a bijection; what is behind the end of the bytes is
/// 0.
STFS_ON_DEVICES constexpr std::uint64_t digest_fold(std::uint64_t lane, std::uint64_t word) {
  const std::uint64_t mixed = (lane ^ word) * 0x9FB21C651E98DF25U;
  return mixed ^ mixed >> 35U;
}
/// What a block adds to the digest, of the sum of its mixed lanes.
STFS_ON_DEVICES constexpr std::uint64_t digest_block(std::uint64_t sum_of_lanes, std::uint64_t block) {
  return digest_mix(digest_mix(sum_of_lanes) + (block + 1) * 0xD6E8FEB86659FD93U);
}
/// The digest, of the sum over all blocks.
STFS_ON_DEVICES constexpr std::uint64_t digest_end(std::uint64_t sum_of_blocks, std::uint64_t size_bytes) {
  return digest_mix(sum_of_blocks + digest_mix(size_bytes + 1));
}

}  // namespace stfs::upload

#if !defined(__CUDACC__)
#include <span>

namespace stfs::upload {

/// What some blocks add to the sum over all; modulo 2^64.
/// @param bytes        begins at a block; ends at one too, unless it is the last of the tensor.
/// @param first_block  number of the block that it begins with.
std::uint64_t digest_sum(std::span<const std::byte> bytes, std::uint64_t first_block);

/// Of all of a tensor at once.
std::uint64_t digest_of(std::span<const std::byte> bytes);

}  // namespace stfs::upload
#endif
