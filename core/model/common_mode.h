// Computes the permissions of files that are made from a model.
#pragma once

#include <cstdint>

#include "core/model/model.h"
#include "core/storage/permissions.h"

namespace stfs {

/// Returns the permissions that all files of the model give, without execution. A user who may not read all
/// of these files may not read a file that is made from them. Access control lists are included. The group's
/// bits are for the group of the first file. A file of another group allows the group, and others, only what
/// it allows both of them. The owner may always read and write.
NewFileMode common_mode(const Model& model);
/// Returns the same for the one file that holds a tensor.
NewFileMode mode_of_tensor(const Model& model, std::uint32_t position);

}  // namespace stfs
