// Names a test that can't run here, and why, for Catch2 2, which knows no skipped tests, and 3 alike.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "tests/support/catch.h"

namespace stfs::test {

/// Counts the test case that runs as skipped; the caller returns from it. tests/run reads the file that
/// STFS_SKIPS names.
inline void note_skip(std::string_view why) {
  WARN("skipped: " << why);
  if (const char* path = std::getenv("STFS_SKIPS")) {
    std::ofstream(path, std::ios::app)
        << Catch::getResultCapture().getCurrentTestName() << ": " << why << '\n';
  }
}

}  // namespace stfs::test
