// Follows what others do to the files of a mount: looks at what has changed, and tells the kernel what to
// forget.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "fs/follow/watcher.h"
#include "fs/kernel/fuse_ops.h"

namespace stfs {

/// For one thread: the watcher's.
class Follower {
 public:
  /// The mount and its invalidator must outlive it.
  explicit Follower(Mount& mount) : mount_(mount) {}

  /// The files to watch. From now on, positions are among these.
  std::vector<std::filesystem::path> files();
  /// @param changed  positions of files that may be others now, ascending.
  Watcher::Next look(std::span<const std::size_t> changed);

 private:
  Mount& mount_;
  std::vector<Forest::WatchedFile> watched_;
  int times_left_ = 0;  // to forget leftovers
};

}  // namespace stfs
