// The files of a source directory, and of the private directories of deltas that lie over it.
//
// Without a delta there is the source directory alone. A delta, NAME, may have a private directory beside it,
// NAME.pretrained: it has the files that programs have changed in the mount, and hides those of the same name
// in the source directory and in the directories of the deltas below. A symbolic link in it stands for a file
// that was removed. fs/write/source_changes.h makes these files.
//
// A private directory belongs to the mounting user, to root or to the delta's owner. The directory of another
// user is refused with EPERM, and one that may not be read with EACCES: the files that it hides would be the
// wrong ones. It may also be a private directory of the mounting user that another user has moved there. So a
// directory that was not made for this delta (core/storage/made_directory.h) is refused, with EPERM, to other
// users than root and the mounting user if the mount would let them do more in it than its mode does.
//
// A mark, an extended attribute, tells the copies that a mount has made from files that another user has
// moved or linked to a private directory. It names the directory, so that it counts nowhere else.
//
// All directories are read at each call, through descriptors from the time before the mount: if the mount
// covers the source directory, its path leads into the mount, and a request that waits for another request
// may wait forever. Nothing follows a link in a private directory. source_entry.h says which links of the
// source are followed.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "fs/read/source_entry.h"

namespace stfs {

/// The name of a delta's private directory.
std::string private_directory_name(std::string_view delta_file_name);

/// Any thread may call. Each call waits for the disk.
class SourceFiles {
 public:
  /// Whether an entry of this name in the top directory is not shown.
  using IsLeftOut = std::function<bool(std::string_view name)>;

  /// Opens the directories.
  /// @param deltas  absolute paths, the one on top last.
  SourceFiles(const std::filesystem::path& source, const std::vector<std::filesystem::path>& deltas,
              IsLeftOut is_left_out);

  struct Found {
    SourceEntry entry;
    /// It lies where changes go, and no link leads to it.
    bool is_own = false;
    /// It lies in the source directory or in a private directory below the one on top.
    bool is_below = false;
  };
  /// Finds a file or directory. Paths are relative to the source directory; it has the empty path itself.
  /// ENOENT, and the errors of open_source_entry(). ELOOP: a link leads back to a directory above.
  [[nodiscard]] Result<Found> find(const std::string& path) const;
  /// The names in a directory, sorted; without those that are left out, and without those of temporary files
  /// of this project, which can be found: a tool may make one here. Some of the others may not be found.
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) const;
  [[nodiscard]] bool is_shown(const std::string& path) const;

  /// A directory of files.
  struct Layer {
    UniqueFd parent;             // of a private directory: holds the delta; else the source directory itself
    std::string name;            // of the private directory
    std::string delta;           // the delta's file name; empty: this is the source directory
    std::filesystem::path path;  // for messages
    [[nodiscard]] bool is_private() const { return !delta.empty(); }
  };
  /// Changes go there.
  [[nodiscard]] const Layer& top() const { return layers_.front(); }
  /// The status of the delta to which a private directory belongs.
  static Result<struct stat> delta_of(const Layer& layer);
  /// Marks a file or a directory as a copy. Does nothing where the file system has no such attributes: then
  /// its own mode decides who may write it.
  void mark_copy(int descriptor, const Layer& layer) const;
  /// The mode of a private directory with this group: whoever may read the delta may enter.
  static mode_t private_mode(const struct stat& delta, gid_t gid);
  /// Opens a layer's directory. Nothing: it does not exist. The first refusal is logged.
  [[nodiscard]] Result<std::optional<UniqueFd>> open(const Layer& layer) const;

 private:
  /// What one layer says of a path.
  struct Answer {
    std::optional<SourceEntry> entry;
    bool is_removed = false;      // no layer below counts
    bool is_behind_link = false;  // of the source directory
  };
  [[nodiscard]] Result<Answer> ask(const Layer& layer, const std::string& path) const;
  [[nodiscard]] Result<void> check_private(const Layer& layer, int directory) const;

  const IsLeftOut is_left_out_;
  std::vector<Layer> layers_;  // from the top to the source directory
  mutable std::atomic<bool> was_refused_ = false;
};

}  // namespace stfs
