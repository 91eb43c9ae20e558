// Computes the digest on the CPU.
#include "tools/device/digest.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace stfs::device {
namespace {

using Lanes = std::array<std::uint64_t, kDigestLanes>;

void fold_row(Lanes& lanes, const std::byte* row) {
  Lanes words;
  std::memcpy(words.data(), row, sizeof words);
  for (unsigned lane = 0; lane < kDigestLanes; ++lane) lanes[lane] = digest_fold(lanes[lane], words[lane]);
}

std::uint64_t sum_of_block(std::span<const std::byte> bytes) {
  Lanes lanes;
  for (unsigned lane = 0; lane < kDigestLanes; ++lane) lanes[lane] = digest_lane(lane);
  for (; bytes.size() >= kDigestRowBytes; bytes = bytes.subspan(kDigestRowBytes))
    fold_row(lanes, bytes.data());
  if (!bytes.empty()) {
    std::array<std::byte, kDigestRowBytes> row{};
    std::memcpy(row.data(), bytes.data(), bytes.size());
    fold_row(lanes, row.data());
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum += digest_mix(lane);
  return sum;
}

}  // namespace

std::uint64_t digest_sum(std::span<const std::byte> bytes, std::uint64_t first_block) {
  std::uint64_t sum = 0;
  for (std::uint64_t block = first_block; !bytes.empty(); ++block) {
    const std::size_t size_bytes = std::min<std::size_t>(bytes.size(), kDigestBlockBytes);
    sum += digest_block(sum_of_block(bytes.first(size_bytes)), block);
    bytes = bytes.subspan(size_bytes);
  }
  return sum;
}

std::uint64_t digest_of(std::span<const std::byte> bytes) {
  return digest_end(digest_sum(bytes, 0), bytes.size());
}

}  // namespace stfs::device
