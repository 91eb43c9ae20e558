// Reacts to changes that other programs make to the files of a mount: checks the changed files, and tells the
// kernel which caches to forget.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "fs/follow/watcher.h"
#include "fs/kernel/fuse_ops.h"

namespace stfs {

/// Only the watcher's thread may call this class.
class Follower {
 public:
  /// The mount and its invalidator must outlive this object.
  explicit Follower(Mount& mount) : mount_(mount) {}

  /// Returns the files to watch. From this call on, positions refer to this list.
  std::vector<std::filesystem::path> files();
  /// Checks files.
  /// @param changed  positions of the files that may have changed, ascending.
  Watcher::Next look(std::span<const std::size_t> changed);

 private:
  Mount& mount_;
  std::vector<MountRoot::WatchedFile> watched_;
  int times_left_ = 0;  // how often leftovers must still be forgotten
};

}  // namespace stfs
