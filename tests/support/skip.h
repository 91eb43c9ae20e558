// Reports a test that can't run here, and the reason. Works with Catch2 2, which has no skipped tests, and 3.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "tests/support/catch.h"

namespace stfs::test {

/// Reports the running test case as skipped; the caller then returns from it. tests/run reads the file that
/// STFS_SKIPS names.
inline void note_skip(std::string_view why) {
  WARN("skipped: " << why);
  if (const char* path = std::getenv("STFS_SKIPS")) {
    std::ofstream(path, std::ios::app)
        << Catch::getResultCapture().getCurrentTestName() << ": " << why << '\n';
  }
}

}  // namespace stfs::test
