// Copies a file's attributes, so that a file that replaces another one has the same ones.
#pragma once

#include <filesystem>

#include "core/base/error.h"

namespace stfs {

/// Gives the open file `to` the permissions, owner, group and extended attributes of the regular file at
/// the path. Who plants a file there must not give rights to these bytes: so a link, or any other kind of
/// file, gives nothing. Set-id bits, the sticky bit and attributes of `security.` and `trusted.` are never
/// copied. Without an administrator's rights it leaves out a foreign owner and access control lists. Losing
/// an attribute of `user.` is a failure.
Result<void> copy_file_attributes(const std::filesystem::path& path, int to);

}  // namespace stfs
