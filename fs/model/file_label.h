// Names a file for the log: the model, and the file's path in it.
#pragma once

#include <string>
#include <string_view>

#include "fs/model/model_parts.h"

namespace stfs {

/// "MODEL: PATH", with the path from the model's root. MODEL alone for the root itself.
/// @param name  a name in the directory `ino`. Empty: the file `ino` itself.
std::string file_label(ModelParts& parts, Ino ino, std::string_view name);

}  // namespace stfs
