// XXH3 with a seed of getrandom(2).
#include "core/base/name_hash.h"

#include <sys/random.h>
#include <xxhash.h>

#include <ctime>

namespace stfs {
namespace {

std::uint64_t make_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) == sizeof seed) return seed;
  // getrandom() is missing before Linux 3.17 and may be filtered. This seed is not secret, but it varies.
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_nsec) * 0x9E37'79B9'7F4A'7C15ULL ^
         reinterpret_cast<std::uintptr_t>(&now);
}

const std::uint64_t kSeed = make_seed();

}  // namespace

std::uint64_t name_hash(std::string_view name, std::uint64_t place) {
  return XXH3_64bits_withSeed(name.data(), name.size(), kSeed + place);
}

}  // namespace stfs
