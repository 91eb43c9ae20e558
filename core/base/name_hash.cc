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
  // A kernel without it (before 3.17), or a filter of system calls: not secret, but not the same every time.
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
