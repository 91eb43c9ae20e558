// Reacts to changes that other programs make to the files of a mount: checks the changed files, and tells the
// kernel what to forget.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "fs/follow/watcher.h"
#include "fs/kernel/fuse_ops.h"

namespace stfs {

/// Only the watcher's thread may call it.
class Follower {
 public:
  /// The mount and its invalidator must outlive it.
  explicit Follower(Mount& mount) : mount_(mount) {}

  /// The files to watch. From now on positions refer to this list.
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
