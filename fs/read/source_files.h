// The files of a source directory, and of the private directories of deltas above it.
//
// Without a delta, only the source directory is used. A delta NAME may have a private directory
// NAME.pretrained beside it. This directory has the files that programs have changed in the mount. Its files
// hide the files of the same name in the source directory and in the directories of lower deltas. A symbolic
// link in it marks a file that was removed. fs/write/source_changes.h makes these files.
//
// The owner of a private directory is the mounting user, root or the delta's owner. A directory of another
// user is refused with EPERM, and a directory that may not be read with EACCES, because without it the mount
// would show the wrong files. A private directory may also be one of the mounting user that another user has
// moved there. Therefore a directory that was not made for this delta (core/storage/made_directory.h) is
// refused with EPERM if the mount would allow more in it than its mode does. Root and the mounting user are
// not refused.
//
// An extended attribute marks the copies that a mount has made. Files that another user has moved or linked
// to a private directory have no valid mark, because the mark names its directory.
//
// Each call reads the directories through descriptors that were opened before the mount. If the mount covers
// the source directory, the path of the source directory leads into the mount, and a request that waits for
// another request may wait forever. Links in a private directory are never followed. source_entry.h says
// which links of the source are followed.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/remote/hub_companions.h"
#include "fs/read/source_entry.h"

namespace stfs {

/// The name of a delta's private directory.
std::string private_directory_name(std::string_view delta_file_name);

/// Any thread may call. Each call waits for the disk.
class SourceFiles {
 public:
  /// Returns true if an entry of this name in the top directory is not shown.
  using IsLeftOut = std::function<bool(std::string_view name)>;

  /// Opens the directories.
  /// @param deltas  absolute paths, the delta on top last.
  SourceFiles(const std::filesystem::path& source, const std::vector<std::filesystem::path>& deltas,
              IsLeftOut is_left_out);

  struct Found {
    SourceEntry entry;
    /// The entry is in the directory that changes are written to, and no link leads to it.
    bool is_own = false;
    /// A directory below the one on top has the path.
    bool is_below = false;
  };
  /// Finds a file or directory. Paths are relative to the source directory, whose own path is empty. ENOENT,
  /// and the errors of open_source_entry(). ELOOP: a link leads back to a directory above.
  [[nodiscard]] Result<Found> find(const std::string& path) const;
  /// Returns the sorted names in a directory. Leaves out names that are not shown, and names of temporary
  /// files of this project, which a tool may make here and find() can find. Some of the other names may not
  /// be found.
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) const;
  [[nodiscard]] bool is_shown(const std::string& path) const;

  /// A directory of files.
  struct Layer {
    UniqueFd parent;             // a private directory's: holds the delta; else the source directory
    std::string name;            // of the private directory
    std::string delta;           // the delta's file name; empty: this is the source directory
    std::filesystem::path path;  // for messages
    [[nodiscard]] bool is_private() const { return !delta.empty(); }
  };
  /// The directory that changes are written to.
  [[nodiscard]] const Layer& top() const { return layers_.front(); }
  /// The status of the delta that has this private directory.
  static Result<struct stat> delta_of(const Layer& layer);
  /// Marks a file or a directory as a copy. Does nothing if the file system has no such attributes. Then the
  /// mode of the copy decides which users may write it.
  void mark_copy(int descriptor, const Layer& layer) const;
  /// The mode of a private directory with this group: every user who may read the delta may enter the
  /// directory.
  static mode_t private_mode(const struct stat& delta, gid_t gid);
  /// Opens a layer's directory. Returns nothing if the directory does not exist. The first refusal is logged.
  [[nodiscard]] Result<std::optional<UniqueFd>> open(const Layer& layer) const;

 private:
  /// The result of a search for a path in one layer.
  struct Answer {
    std::optional<SourceEntry> entry;
    bool is_removed = false;      // no lower layer is searched
    bool is_behind_link = false;  // a link of the source directory leads to it
  };
  [[nodiscard]] Result<Answer> ask(const Layer& layer, const std::string& path) const;
  [[nodiscard]] Result<void> check_private(const Layer& layer, int directory) const;

  /// Brings a file of a model on the Hub; all of them without a name. Logs a failure.
  [[nodiscard]] Result<void> bring_companions(const std::string& name) const;

  const IsLeftOut is_left_out_;
  const std::shared_ptr<HubCompanions> companions_;  // null if the source is no model on the Hub
  std::vector<Layer> layers_;                        // from the top to the source directory
  mutable std::atomic<bool> was_refused_ = false;
  mutable std::atomic<bool> has_failed_to_bring_ = false;
};

}  // namespace stfs
