// Lists the indexes and archives in a directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/trusted_links.h"

namespace stfs {

/// The end of an index's file name.
inline constexpr std::string_view kModelIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kArchiveSuffix = ".safetensors";

/// Whether a file of that name may be an archive: it ends in kArchiveSuffix and does not begin with a dot.
/// Other systems and programs leave hidden files of that end: `._model.safetensors` of macOS,
/// `.model.safetensors` of a copy that is under way.
bool is_archive_name(std::string_view file_name);

struct ModelDirectory {
  // File names, ascending.
  std::vector<std::string> indexes;
  std::vector<std::string> archives;
  // Indexes that another user may have planted (file_attributes.h). They don't count: such a user would
  // choose which model the directory means, or make it none. A person may name such an index.
  std::vector<std::string> ignored_indexes;

  /// What to tell about them, after the directory's path: "the index ... is ignored: ..."; empty if there
  /// are none.
  [[nodiscard]] std::string ignored_text(const std::filesystem::path& directory,
                                         Storage& storage = system_storage()) const;
};

/// Whether the path ends in the name of an archive or of an index, hidden ones included.
bool is_called_as_model(const std::filesystem::path& path);

/// Opens what a person has named, with all links followed, as follow_all_links() does. Another user's mount
/// is entered if a person may have meant it: not if it is called as an archive or an index, and not behind
/// another user's link.
/// @return EXDEV: another user's mount that is not entered.
Result<FollowedFile> follow_named_path(const std::filesystem::path& path);

/// Whether the path leads to a directory, by follow_named_path().
bool is_directory_of_models(const std::filesystem::path& path);

/// The entries may be of any kind. Names that begin with a dot are left out.
Result<ModelDirectory> list_model_directory(const std::filesystem::path& directory,
                                            Storage& storage = system_storage());

/// Returns the path of the directory's one index. NotFound (ENOENT) if there is none. InvalidArgument
/// (EINVAL) with their names if there are several.
Result<std::filesystem::path> find_model_index(const std::filesystem::path& directory,
                                               Storage& storage = system_storage());

}  // namespace stfs
