// A directory that was opened without following a link or entering a mount. Its files are reached through
// the open directory, so a user who gives the directory's path to another one afterwards changes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

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
  /// The same error. A message that has a path of file() gets the path for people.
  /// @param shown  the directory's path for people.
  [[nodiscard]] Error with_shown_paths(Error error, const std::filesystem::path& shown) const;
};

enum class LastLink : std::uint8_t {
  Refused,   // and so is a mount
  Followed,  // for a path that a person has given. The descriptor only leads to files (O_PATH)
};

/// Opens the directory at the path.
/// @param link  whether the last component may be a link. Those before it may.
/// @return ENOTDIR: it is a file, or a link that is refused. ENOENT: there is none. EACCES: also for a mount,
/// which the message names, with the user who has mounted it.
Result<OpenDirectory> open_directory(Storage& storage, const std::filesystem::path& path,
                                     LastLink link = LastLink::Refused);

/// Whether a directory that this process has just made and opened is that one, and not one that another user
/// has moved to its name: it belongs to this process's user, and is empty.
bool is_newly_made(int directory);

}  // namespace stfs
