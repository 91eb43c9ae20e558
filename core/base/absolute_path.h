// Makes absolute the path that a user gives, for attributes, `mount` and the log.
#pragma once

#include <filesystem>

#include "core/base/error.h"

namespace stfs {

/// Returns the path from the root, without ".". Keeps links and "..": a link's directory says where its
/// shards lie, and ".." after a link means another place. Fails if the working directory is gone.
Result<std::filesystem::path> absolute_path(const std::filesystem::path& path);

}  // namespace stfs
