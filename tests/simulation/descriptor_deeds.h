// Operations of programs on open files. Programs also fork and end here.
#pragma once

#include <cstdint>

#include "tests/simulation/deeds.h"

namespace stfs::test {

class DescriptorDeeds : private Deeds {
 public:
  explicit DescriptorDeeds(Machine& machine) : Deeds(machine) {}

  void read(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d);
  void write(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d);
  void close(std::uint32_t a, std::uint32_t b);
  void sync(std::uint32_t a, std::uint32_t b);
  void resize(std::uint32_t a, std::uint32_t b, std::uint32_t c);
  void duplicate(std::uint32_t a, std::uint32_t b);
  void map(std::uint32_t a, std::uint32_t b);
  void store(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d);
  void unmap(std::uint32_t a, std::uint32_t b);
  void fork(std::uint32_t a, std::uint32_t b);
  void end_one(std::uint32_t a, Ending ending);
};

}  // namespace stfs::test
