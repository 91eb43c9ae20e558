// A directory that was opened without following a link. Its files are reached through the open directory, so
// a user who gives the directory's path to another one afterwards changes nothing.
#pragma once

#include <filesystem>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"

namespace stfs {

struct OpenDirectory {
  UniqueFd fd;                 // none in a storage of a test
  std::filesystem::path path;  // that leads to the open directory while `fd` is open
  FileStatus status;           // when it was opened

  /// A file in it.
  [[nodiscard]] std::filesystem::path file(const std::filesystem::path& name) const { return path / name; }
};

/// Opens the directory at the path. Only the last component must be no link.
/// @return ENOTDIR: it is a link or a file. ENOENT: there is none.
Result<OpenDirectory> open_directory(Storage& storage, const std::filesystem::path& path);

/// Whether a directory that this process has just made and opened is that one, and not one that another user
/// has moved to its name: it belongs to this process's user, and is empty.
bool is_newly_made(int directory);

}  // namespace stfs
