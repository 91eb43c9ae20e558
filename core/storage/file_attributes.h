// What a file has besides its bytes: a file that takes another one's place must look like it.
#pragma once

#include <filesystem>

#include "core/base/error.h"

namespace stfs {

/// Gives the open file `to` the mode, owner, group and extended attributes (ACLs among them) of the
/// file at `from`, links followed. What only an administrator may give is left out for others: a
/// foreign owner, and attributes outside `user.`. Losing anything else is a failure.
Result<void> copy_file_attributes(const std::filesystem::path& from, int to);

}  // namespace stfs
