// Files that verbs write beside their data: -o FILE, --record FILE.
#pragma once

#include <string>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/storage/new_file.h"

namespace stfs::tools {

/// Replaces what lies at the path when it is finished, as a compiler's -o does, but no file of the model that
/// is being read: its archive, its index or a shard, by whatever name.
Result<NewFile> create_output(const std::string& path, const Model& model);

}  // namespace stfs::tools
