// The absolute path of what a person names, as it is shown to others: in attributes, in `mount`, in the log.
#pragma once

#include <filesystem>

#include "core/base/error.h"

namespace stfs {

/// The path from the root, without "." in it. Links and ".." stay: a link says where its shards lie, and
/// ".." means another place after one. Fails where the working directory is gone.
Result<std::filesystem::path> absolute_path(const std::filesystem::path& path);

}  // namespace stfs
