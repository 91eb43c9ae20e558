// Checks and creates the output files of verbs. Files of the models that a verb reads are never replaced.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/storage/new_file.h"

namespace stfs::tools {

/// A model that the verb reads, and its argument's name.
struct ReadModel {
  const Model* model = nullptr;
  std::string_view argument;
};

/// Returns the reason why the path can't be written, for a person; nothing if it can. Files of models that
/// the verb reads are never replaced.
std::optional<std::string> obstacle_at(const std::filesystem::path& path,
                                       std::initializer_list<ReadModel> models, bool is_replacing);

/// Creates a file that gets its name when it is finished. Refuses to replace a file of the model that is
/// being read (its archive, its index or a shard), under any name. EEXIST: the file is one of these, or
/// obstacle_at() returns a reason (for example, the file exists and is_replacing is false). A link is itself
/// replaced.
/// @param mode  the permissions of a file that replaces no other one, before the umask: the permissions of
///              the files that the output is made from (core/model/common_mode.h).
Result<NewFile> create_output(const std::string& path, const Model& model, bool is_replacing,
                              const NewFileMode& mode);

}  // namespace stfs::tools
