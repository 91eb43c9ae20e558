// Operations of programs on transactions: mkdir, mv and rm -r.
#pragma once

#include <cstdint>

#include "tests/simulation/deeds.h"

namespace stfs::test {

class TransactionDeeds : private Deeds {
 public:
  explicit TransactionDeeds(Machine& machine) : Deeds(machine) {}

  void begin(std::uint32_t a, std::uint32_t b);
  void commit(std::uint32_t a, std::uint32_t b);
  void abandon(std::uint32_t a, std::uint32_t b);
};

}  // namespace stfs::test
