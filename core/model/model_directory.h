// What a directory holds of models: the names of its indexes and of its archives.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// The end of an index's file name.
inline constexpr std::string_view kModelIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kArchiveSuffix = ".safetensors";

struct ModelDirectory {
  // File names, ascending.
  std::vector<std::string> indexes;
  std::vector<std::string> archives;
};

/// Looks at names alone: what lies there may be anything. A file named just `.safetensors` is no archive.
Result<ModelDirectory> list_model_directory(const std::filesystem::path& directory,
                                            Storage& storage = system_storage());

/// The path of the directory's one index. NotFound (ENOENT) where there is none, InvalidArgument (EINVAL)
/// with their names where there are several.
Result<std::filesystem::path> find_model_index(const std::filesystem::path& directory,
                                               Storage& storage = system_storage());

}  // namespace stfs
