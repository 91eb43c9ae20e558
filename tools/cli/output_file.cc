// Finds out which files must not be replaced.
#include "tools/cli/output_file.h"

#include <algorithm>
#include <filesystem>

namespace stfs::tools {

namespace fs = std::filesystem;

Result<NewFile> create_output(const std::string& path, const Model& model) {
  if (path.empty()) return fail(ErrorCode::InvalidArgument, ENOENT, "the name of the output file is empty");
  const auto is_there = [&](const fs::path& other) {
    std::error_code no_such_file;
    return fs::equivalent(path, other, no_such_file);
  };
  if (is_there(model.path()) ||
      std::ranges::any_of(model.shards(), [&](const Shard& shard) { return is_there(shard.path); })) {
    return fail(ErrorCode::InvalidArgument, EEXIST,
                path + ": is a file of the input model and is not replaced");
  }
  return NewFile::create(path, true);
}

}  // namespace stfs::tools
