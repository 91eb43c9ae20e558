// The permissions of files that are made from a model.
#pragma once

#include <cstdint>

#include "core/model/model.h"
#include "core/storage/permissions.h"

namespace stfs {

/// Returns the permissions that all files of the model give, without execution: whoever may not read all of
/// them may not read a file that is made from them. Access control lists count. The group's bits are for the
/// group of the files; if they have several, each gets what others have. The owner may always read and write.
NewFileMode common_mode(const Model& model);
/// The same of the one file that holds a tensor.
NewFileMode mode_of_tensor(const Model& model, std::uint32_t position);

}  // namespace stfs
