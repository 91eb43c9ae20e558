// core/base/name_hash.h: other processes can't find out which names collide.
#include "core/base/name_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kSlots = 4096;

/// Returns names that have one slot in a table whose hash has no seed, as an attacker chooses them.
std::vector<std::string> names_of_one_slot(std::size_t count) {
  std::vector<std::string> names;
  for (int number = 0; names.size() < count; ++number) {
    std::string name = fmt::format("layers.{}", number);
    if (XXH3_64bits(name.data(), name.size()) % kSlots == 0) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

TEST_CASE("names that collide without a seed are in different slots", "[core][name_hash]") {
  std::set<std::uint64_t> slots;
  for (const std::string& name : names_of_one_slot(64)) slots.insert(name_hash(name) % kSlots);
  // With a seed it is practically impossible that 32 of 64 names have a slot that is used already.
  CHECK(slots.size() > 32);
}

TEST_CASE("one name in many directories has many hashes", "[core][name_hash]") {
  std::set<std::uint64_t> slots;
  for (std::uint64_t directory = 0; directory < 64; ++directory)
    slots.insert(name_hash("weight", directory) % kSlots);
  CHECK(slots.size() > 32);
  CHECK(name_hash("weight", 3) == name_hash("weight", 3));
}
