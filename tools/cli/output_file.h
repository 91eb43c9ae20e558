// Files that verbs write in addition to standard output: -o FILE, --record FILE.
#pragma once

#include <string>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/storage/new_file.h"

namespace stfs::tools {

/// Creates a file that replaces the one at the path when it is finished, like -o of a compiler. Refuses to
/// replace a file of the model that is being read (its archive, its index or a shard), under any name.
Result<NewFile> create_output(const std::string& path, const Model& model);

}  // namespace stfs::tools
