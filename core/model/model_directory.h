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

/// Returns true if a file of this name may be an archive: the name ends in kArchiveSuffix and does not begin
/// with a dot. Other systems and programs leave hidden files with this suffix: macOS makes
/// `._model.safetensors`, and some programs copy to `.model.safetensors` first.
bool is_archive_name(std::string_view file_name);

struct ModelDirectory {
  // File names, ascending.
  std::vector<std::string> indexes;
  std::vector<std::string> archives;
  // Indexes that another user may have planted (file_attributes.h). stfs ignores them: that user could
  // choose which model the directory means, or could make the choice ambiguous. A person may name such an
  // index.
  std::vector<std::string> ignored_indexes;

  /// Returns the message about the ignored indexes, which follows the directory's path: "the index ... is
  /// ignored: ...". Empty without such indexes.
  [[nodiscard]] std::string ignored_text(const std::filesystem::path& directory,
                                         Storage& storage = system_storage()) const;
};

/// Returns true if the path ends in the name of an archive or of an index. Hidden names are included.
bool is_called_as_model(const std::filesystem::path& path);

/// Opens the file that a person has named, and follows all links as follow_all_links() does. Another user's
/// mount is entered if a person may have meant the mount: not if the path has the name of an archive or an
/// index, and not behind another user's link.
/// @return EXDEV: another user's mount that is not entered.
Result<FollowedFile> follow_named_path(const std::filesystem::path& path);

/// Returns true if the path leads to a directory. follow_named_path() follows the path.
bool is_directory_of_models(const std::filesystem::path& path);

/// Lists a directory. Entries may be of any kind. Names that begin with a dot are left out.
Result<ModelDirectory> list_model_directory(const std::filesystem::path& directory,
                                            Storage& storage = system_storage());

/// Removes the archives that another user may have planted (file_attributes.h), unless no others would
/// remain: that user could make the choice of the directory's model ambiguous. A person may name such an
/// archive.
/// @param archives  file names in the directory.
void leave_out_planted(const Storage& storage, const std::filesystem::path& directory,
                       std::vector<std::string>& archives);

/// Returns the path of the directory's one index. NotFound (ENOENT) if there is none. InvalidArgument
/// (EINVAL) with their names if there are several.
Result<std::filesystem::path> find_model_index(const std::filesystem::path& directory,
                                               Storage& storage = system_storage());

}  // namespace stfs
