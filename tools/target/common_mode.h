// The permissions of files that are made from a model.
#pragma once

#include <sys/types.h>

#include "core/model/model.h"

namespace stfs::tools {

/// Returns the permissions that all files of the model have, without execution: whoever may not read all of
/// them may not read a file that is made from them. The owner may always read and write.
mode_t common_mode(const Model& model);

}  // namespace stfs::tools
