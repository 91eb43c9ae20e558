// Other models in the directory of an index: users who name the directory may have meant one of them.
#pragma once

#include <string>
#include <vector>

#include "core/model/model.h"

namespace stfs {

/// The file names of archives that lie beside the index, are none of its shards, are valid, have tensors
/// and are no deltas.
/// Looks at the first 16 such names. Empty for a model of one archive, and if the directory can't be read.
std::vector<std::string> models_beside(const Model& model);

/// What to tell about them: "DIR: also holds a.safetensors, which the index does not name: name ..."; empty
/// if there are none.
std::string models_beside_text(const Model& model);

}  // namespace stfs
