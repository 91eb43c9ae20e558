// Notices files of a model that another program changed while a verb read them.
#pragma once

#include <string>
#include <vector>

#include "core/model/model.h"

namespace stfs::tools {

/// Returns the files that changed since the model was opened. What was read from such a file may match
/// neither its old nor its new state.
std::vector<std::string> changed_files(const Model& model);

}  // namespace stfs::tools
