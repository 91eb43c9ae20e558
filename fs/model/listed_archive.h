// What a mount of a directory asks of an archive in it before its model is shown. Other users may have put
// the archive there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/base/error.h"
#include "core/model/model.h"

namespace stfs {

/// EEXIST if the model's directory would hide another user's file of the source directory. An archive of the
/// directory's owner may hide others, and so may one where only the owner may write the directory. Of two
/// other users, the one whose file is older keeps the name.
Result<void> check_hides_nothing(const std::filesystem::path& archive, std::string_view model_name);

/// The bytes of all headers of an open model.
std::size_t header_bytes_of(const Model& model);

}  // namespace stfs
