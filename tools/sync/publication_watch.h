// Waits for a change in a directory of published versions.
//
// inotify reports at once the changes by processes of this host. Changes by other hosts are not reported, so
// every wait also ends after an interval.
#pragma once

#include <chrono>
#include <filesystem>

#include "core/base/unique_fd.h"

namespace stfs::sync {

/// Used by one thread.
class PublicationWatch {
 public:
  /// Watches the directory and its newest versions, as far as inotify can. After a failure only the interval
  /// ends waits.
  explicit PublicationWatch(std::filesystem::path directory);

  /// Returns after a change, after the interval, or after a signal. The caller looks at the directory before
  /// the call: changes since the watch began are not missed.
  void wait(std::chrono::milliseconds interval);

 private:
  /// Watches the newest versions, because a version's files are made after its name.
  void watch_newest();

  const std::filesystem::path directory_;
  UniqueFd inotify_;
};

}  // namespace stfs::sync
