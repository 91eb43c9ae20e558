// Finds other models in the directory of an index: a user who names the directory may have meant one of them.
#pragma once

#include <string>
#include <vector>

#include "core/model/model.h"

namespace stfs {

/// Returns the file names of archives that are in the directory of the index, are no shards of the model, are
/// valid, have tensors and are no deltas. Opens at most the first 16 candidates. Empty for a model of one
/// archive, and if the directory can't be read.
std::vector<std::string> models_beside(const Model& model);

/// Returns the message about these models: "DIR: also holds the model a.safetensors, which the index does not
/// name: name ..."; empty if there are none.
std::string models_beside_text(const Model& model);

}  // namespace stfs
