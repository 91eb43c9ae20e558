// How many descriptors this process has open: the same before and after, or one has leaked.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace stfs::test {

inline std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                                std::filesystem::directory_iterator()));
}

}  // namespace stfs::test
