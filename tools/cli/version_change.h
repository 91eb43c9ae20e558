// stfs apply with a published version of weights (tools/sync) in place of a delta.
#pragma once

#include <cstdint>
#include <string>

#include "tools/cli/change_options.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

struct VersionChange {
  std::string target;
  std::string directory;  // of the version
  ChangeOptions options;
  std::uint64_t threads = 0;  // 0: one for each processor
  bool is_dry_run = false;
  bool json = false;
};

/// Returns true if the path is the directory of a published version, by its name weight_vN or by its index.
bool is_version_directory(const std::string& path);

/// Applies the version, and prints the changes. Returns the verb's exit code.
int apply_published(const VersionChange& change, Streams& streams);

}  // namespace stfs::tools
