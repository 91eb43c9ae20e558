// What the user asked to mount.
#pragma once

#include <filesystem>
#include <memory>

#include "core/archive.h"

namespace stfs {

/// Opens the archive for writing where that is allowed, else for reading; says in the log which, and why.
/// A directory is refused with the archives that it holds.
Result<std::unique_ptr<Archive>> open_source(const std::filesystem::path& source, bool is_read_only);

}  // namespace stfs
