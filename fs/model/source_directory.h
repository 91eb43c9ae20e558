// The entries of a mounted directory of models that are no models: the other entries of the source directory
// (fs/read/source_tree.h, served_files.h). MountRoot shows the models themselves (mount_root.h), and calls
// this class for the other entries. This class changes no file.
//
// The mount shows the directory that it has opened, even if this directory is moved. While the path leads to
// another directory, no model is opened. Otherwise another user who may write the parent directory could
// choose what the mount shows, for example a directory that others may not enter.
//
// The inode numbers are the numbers of SourceTree, in the space of number 0, which no model of a directory
// has. The kernel caches neither names nor attributes of these numbers.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/model/model_directory.h"
#include "core/storage/file.h"
#include "fs/model/mounted_model_options.h"
#include "fs/model/served_files.h"
#include "fs/read/source_tree.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_space.h"

namespace stfs {

/// Any thread may call. Each call waits for the disk of the source directory, except file_type(),
/// note_lookup() and forget().
class SourceDirectory {
 public:
  using Stat = struct stat;  // `stat` alone is the function

  /// Opens the directory.
  /// @param path  absolute.
  SourceDirectory(const std::filesystem::path& path, const MountedModelOptions& options);
  /// `is_model` returns true if a file is shown as a model. Set before the first call.
  void leave_out(std::function<bool(std::string_view file_name)> is_model) {
    is_model_ = std::move(is_model);
  }

  /// True for the number of an entry. False for the root.
  static bool serves(Ino ino) { return InodeSpace::number_of(ino) == 0 && SourceTree::owns(ino); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_shared() const { return options_.is_shared; }
  /// The directory's own status, with the owner and the mode that the mount shows. Nothing if the directory
  /// cannot be read. EMFILE or ENFILE if no descriptors are left.
  [[nodiscard]] Result<std::optional<Stat>> status() const;

  /// A served file or directory, or the root.
  [[nodiscard]] Node node(Ino ino) const {
    return tree_.node(ino == kRootIno ? SourceTree::kDirectory : ino);
  }
  [[nodiscard]] ServedFiles& files() { return files_; }
  /// SourceTree::is_changed().
  [[nodiscard]] bool is_changed(Ino ino) const { return tree_.is_changed(ino); }
  /// The status of the file or link of that name; nothing if the name does not exist.
  [[nodiscard]] std::optional<struct stat> status_of(const std::string& name) const;
  /// ESTALE while path() leads to another directory than the open one. ENOENT while path() leads nowhere.
  [[nodiscard]] Result<void> check_place() const;
  /// ESTALE unless the open directory's entry of that name leads to this file.
  [[nodiscard]] Result<void> check_archive(std::string_view name, const FileIdentity& archive) const;
  /// The indexes and archives in the open directory.
  [[nodiscard]] Result<ModelDirectory> list_models() const;
  /// The path of an entry, for messages.
  [[nodiscard]] std::filesystem::path path_of(Ino ino) const;

  // ENOENT if a name or a number does not exist.
  [[nodiscard]] Result<Ino> find(Ino directory, std::string_view name) {
    return tree_.find(directory == kRootIno ? SourceTree::kDirectory : directory, name);
  }
  [[nodiscard]] Result<Stat> attributes(Ino ino) const { return files_.attributes(node(ino)); }
  /// S_IFDIR or S_IFREG.
  [[nodiscard]] mode_t file_type(Ino ino) const;
  /// Lists the entries of the root without archives. Positions count from 0.
  void list_root(std::uint64_t position, const Directory::VisitEntry& visit) const;
  /// Lists another directory, with `.` and `..`.
  void list(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const;
  void note_lookup(Ino ino) const { tree_.note_lookup(ino); }
  void forget(Ino ino, std::uint64_t lookups) const { tree_.forget(ino, lookups); }

 private:
  /// The descriptor of the directory, for system calls whose names end in `at`.
  [[nodiscard]] int descriptor() const { return tree_.files().top().parent.get(); }

  const std::filesystem::path path_;
  const MountedModelOptions options_;
  std::function<bool(std::string_view file_name)> is_model_ = [](std::string_view) { return false; };
  SourceTree tree_;
  ServedFiles files_;
};

}  // namespace stfs
