// Finds files of a model that another program changed while a verb read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"

namespace stfs::tools {

/// Returns the files that changed since the model was opened. Bytes that were read from such a file may match
/// neither its old nor its new state.
std::vector<std::string> changed_files(const Model& model);

/// Fails with ArchiveChanged (ESTALE) if a file has changed since the model was opened.
/// @param during  the end of the message: "PATH: was changed during DURING".
Result<void> check_unchanged(const Model& model, std::string_view during = "the command");

}  // namespace stfs::tools
