// Operations of other programs on the archive, without the mount.
#pragma once

#include <cstdint>

#include "tests/simulation/deeds.h"

namespace stfs::test {

class StrangerDeeds : private Deeds {
 public:
  explicit StrangerDeeds(Machine& machine) : Deeds(machine) {}

  /// Commits a tensor, or a part of it.
  void put(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d);
  /// Writes as dd does, at a time without a journal. With a journal, the result of the write would be
  /// unknown.
  void foreign_write(std::uint32_t a, std::uint32_t b, std::uint32_t c);
  void replace();
  /// chmod and chown.
  void change_access();
};

}  // namespace stfs::test
