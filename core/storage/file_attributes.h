// Copies a file's attributes, so that a file that replaces another one has the same ones.
#pragma once

#include <filesystem>

#include "core/base/error.h"

namespace stfs {

/// Gives the open file `to` the mode, owner, group and extended attributes (with ACLs) of the file at `from`,
/// following links. Without an administrator's rights it leaves out a foreign owner and attributes outside
/// `user.`. Losing any other attribute is a failure.
Result<void> copy_file_attributes(const std::filesystem::path& from, int to);

}  // namespace stfs
