// What others do to the archive beside the mount.
#pragma once

#include <cstdint>

#include "tests/simulation/deeds.h"

namespace stfs::test {

class StrangerDeeds : private Deeds {
 public:
  explicit StrangerDeeds(Machine& machine) : Deeds(machine) {}

  /// Commits to a tensor, or a part of it.
  void put(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d);
  /// dd, when no journal is kept: nobody can tell then what of it was there before.
  void foreign_write(std::uint32_t a, std::uint32_t b, std::uint32_t c);
  void replace();
  /// chmod and chown.
  void change_access();
};

}  // namespace stfs::test
