// The version of this build. Only CMakeLists.txt states the version.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

/// The version as MAJOR.MINOR.PATCH, terminated by NUL.
const char* build_version();

/// The commit of the program's sources: 8 digits, and ", changed" if the sources had changes that are not
/// committed. Empty in tests and libraries, and where the sources are no git checkout. In the programs, a
/// source that the build writes (packaging/commit.cmake) replaces this function at the link.
std::string_view build_commit();

/// Returns the line that `PROGRAM --version` prints, with its newline: "stfs 1.2.3 (0123abcd)".
std::string version_line(std::string_view program);

}  // namespace stfs
