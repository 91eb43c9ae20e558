// A disk whose journals are staged in stripes, and contents for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/disk_model.h"

namespace stfs::test {

inline constexpr std::uint64_t kStripe = 2 * kDiskBlockBytes;

inline DiskOptions disk_of(std::uint32_t files, std::uint32_t slots = 2) {
  return {.has_clone = true,
          .striping = {.files = files, .stripe_bytes = kStripe, .slots = slots, .from_bytes = 0}};
}

inline std::vector<std::byte> some_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

}  // namespace stfs::test
