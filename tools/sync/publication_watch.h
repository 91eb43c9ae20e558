// Waits for something to happen in a directory of published versions.
//
// inotify tells at once what processes of this host do. It tells nothing of other hosts, so every wait also
// ends after an interval.
#pragma once

#include <chrono>
#include <filesystem>

#include "core/base/unique_fd.h"

namespace stfs::sync {

/// Used by one thread.
class PublicationWatch {
 public:
  /// Watches the directory and its newest versions, as far as inotify can. A failure leaves the interval.
  explicit PublicationWatch(std::filesystem::path directory);

  /// Returns after a change, after the interval, or after a signal. Call it after a look at the directory:
  /// what came since the watch began is not missed.
  void wait(std::chrono::milliseconds interval);

 private:
  /// Watches the newest versions: their files come after their names.
  void watch_newest();

  const std::filesystem::path directory_;
  UniqueFd inotify_;
};

}  // namespace stfs::sync
