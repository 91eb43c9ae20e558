#include "core/base/version.h"

#include <fmt/format.h>

namespace stfs {

const char* build_version() {
  return STFS_VERSION;
}

std::string version_line(std::string_view program) {
  const std::string_view commit = build_commit();
  if (commit.empty()) return fmt::format("{} {}\n", program, build_version());
  return fmt::format("{} {} ({})\n", program, build_version(), commit);
}

}  // namespace stfs
