// Operations that the kernel and the threads of the mount begin by themselves.
#pragma once

#include <cstdint>

#include "tests/simulation/deeds.h"

namespace stfs::test {

class MountDeeds : private Deeds {
 public:
  explicit MountDeeds(Machine& machine) : Deeds(machine) {}

  void write_back(std::uint32_t a);
  void release(std::uint32_t a);
  void invalidate(std::uint32_t a);
  void look();
  void tidy();

 private:
  /// Tells the truth that nothing old is shown any more, if that is so.
  void settle();
};

}  // namespace stfs::test
