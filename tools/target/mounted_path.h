// Resolves a path inside a mount. Implements the rows of the table in target.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "tools/target/target.h"

namespace stfs::tools {

/// Returns the root of the mount that contains the path; nothing if there is none or if the path is the root
/// itself.
std::optional<std::filesystem::path> mount_above(const std::filesystem::path& path,
                                                 const AttributeReader& attributes);

/// @param archive  the value of the path's attribute user.safetensors.archive.
/// @return EINVAL, or EROFS with Use::Change, if the table requires the user to name another path.
Result<TargetPath> locate_in_mount(const std::filesystem::path& named, std::string archive, Use use,
                                   const AttributeReader& attributes);

}  // namespace stfs::tools
