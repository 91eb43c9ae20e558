// A directory that was opened without following a link or entering a mount. Its files are reached through the
// open directory, so another user who replaces the directory at its path has no effect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"

namespace stfs {

struct OpenDirectory {
  UniqueFd fd;                 // none in a storage of a test
  std::filesystem::path path;  // leads to the open directory while `fd` is open
  FileStatus status;           // when it was opened

  /// A file in it.
  [[nodiscard]] std::filesystem::path file(const std::filesystem::path& name) const { return path / name; }
  /// Replaces a path of file() in the error's message by the path for people.
  /// @param shown  the directory's path for people.
  [[nodiscard]] Error with_shown_paths(Error error, const std::filesystem::path& shown) const;
};

enum class LastLink : std::uint8_t {
  Refused,   // also refuses a mount
  Followed,  // for a path that a person has given. The descriptor only leads to files (O_PATH)
};

/// Opens the directory at the path.
/// @param link  whether the last component may be a link. Earlier components may always be links.
/// Never waits for another user's mount behind a link of that user (follow_to_directory()).
/// @return ENOTDIR: it is a file, or a link that is refused. ENOENT: it does not exist. EACCES: also for a
/// mount. The message then names the mount and the user who has mounted it. EXDEV: a link leads into another
/// user's mount.
Result<OpenDirectory> open_directory(Storage& storage, const std::filesystem::path& path,
                                     LastLink link = LastLink::Refused);

/// Opens the directory that the path leads to now, whose components may be links. A storage that has kept
/// another directory of that path (storage_beside()) has no effect. Never waits for another user's mount.
/// The descriptor only leads to files (O_PATH).
Result<OpenDirectory> open_folder(Storage& storage, const std::filesystem::path& path);

/// Returns true if the name in the directory, which is no link, is that open file.
bool has_entry(Storage& storage, const OpenDirectory& directory, const std::filesystem::path& name,
               const File& file);

/// Opens the directory of a file, and returns the storage that reaches its files through that descriptor
/// (storage_in()). The storage keeps this directory when another user gives its path, or the path of a
/// directory above, to another directory. Returns the storage itself if it is not the operating system's, or
/// without /proc.
/// @param path  of the open file, without links.
/// @param file  null: takes the directory that is at the path now.
/// @return ESTALE: the directory at the path does not have the file.
Result<std::shared_ptr<Storage>> storage_beside(Storage& storage, const std::filesystem::path& path,
                                                const File* file);

/// Returns true if an open directory is the one that this process has just made, and not one that another
/// user has moved to its name: its owner is this process's user, and it is empty.
bool is_newly_made(int directory);

}  // namespace stfs
