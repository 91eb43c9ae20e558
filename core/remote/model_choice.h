// Chooses the archive or the index that a library would load from a directory of a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace stfs {

/// Returns true for the name of an archive or of an index.
bool is_model_file(std::string_view path);

/// Returns the part of the path before its last slash, with the slash.
std::string_view folder_of(std::string_view path);

struct ModelChoice {
  std::string chosen;                // empty: none, or several
  std::vector<std::string> several;  // then the archives, or the indexes if there are some
};

/// Chooses among the files of a directory: the archive or the index with the name that transformers or
/// diffusers give it; else the only index; else the only archive.
/// @param folder  the directory, with a slash at the end. Empty: the top.
/// @param paths  files; files of other directories are ignored.
ModelChoice choose_model_file(std::string_view folder, const std::vector<std::string>& paths);

/// The error that lists several archives.
/// @param example  a name that the reader may write instead, with FILE in it.
Error several_archives(std::string_view shown, std::string_view example,
                       const std::vector<std::string>& several);

}  // namespace stfs
