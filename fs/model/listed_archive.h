// Checks an archive in a mounted directory before the mount shows its model. Another user may have put the
// archive there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/base/error.h"
#include "core/model/model.h"

namespace stfs {

/// EEXIST if the model's directory would hide another user's file of the source directory. An archive of the
/// directory's owner may hide other files. So may any archive if only the owner may write the directory.
/// Between two other users, the user whose file is older keeps the name.
Result<void> check_hides_nothing(const std::filesystem::path& archive, std::string_view model_name);

/// The bytes of all headers of an open model.
std::size_t header_bytes_of(const Model& model);

}  // namespace stfs
