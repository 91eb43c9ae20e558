// The permissions of files that are made from a model.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "core/model/model.h"

namespace stfs::tools {

/// Returns the permissions that all files of the model give, without execution: whoever may not read all of
/// them may not read a file that is made from them. Access control lists count. If this process has another
/// group than a file, the group has the rights of others. The owner may always read and write.
mode_t common_mode(const Model& model);
/// The same of the one file that holds a tensor.
mode_t mode_of_tensor(const Model& model, std::uint32_t position);

}  // namespace stfs::tools
