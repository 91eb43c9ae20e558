// Counts the open descriptors of this process. A different count before and after a call shows a leak.
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
