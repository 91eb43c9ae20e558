// Operations of programs on files by their paths: stat, list, open and truncate.
#pragma once

#include <cstdint>

#include "tests/simulation/deeds.h"

namespace stfs::test {

class PathDeeds : private Deeds {
 public:
  explicit PathDeeds(Machine& machine) : Deeds(machine) {}

  /// Reads the whole file, or all bytes behind some byte.
  void read_path(std::uint32_t a, std::uint32_t b, std::uint32_t c);
  void read_view(std::uint32_t a, std::uint32_t b, std::uint32_t c);
  void stat(std::uint32_t a, std::uint32_t b);
  void list(std::uint32_t a, std::uint32_t b);
  void checksum(std::uint32_t a, std::uint32_t b);
  void open(std::uint32_t a, std::uint32_t b, std::uint32_t c);
  /// Writes the whole file as cp does, in pieces.
  void write_whole(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d);
  void resize_path(std::uint32_t a, std::uint32_t b, std::uint32_t c);
};

}  // namespace stfs::test
