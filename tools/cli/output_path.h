// Whether a verb may write a new file at a path that the user named.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/model/model.h"

namespace stfs::tools {

/// A model that the verb reads, and its argument's name.
struct ReadModel {
  const Model* model = nullptr;
  std::string_view argument;
};

/// Why the path can't be written, for a person; nothing if it can. Files of models that the verb reads are
/// never replaced.
std::optional<std::string> obstacle_at(const std::filesystem::path& path,
                                       std::initializer_list<ReadModel> models, bool is_replacing);

}  // namespace stfs::tools
