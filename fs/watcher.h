// Notices that somebody else writes into, cuts, replaces or deletes the archive while it is mounted.
//
// inotify sees every write(2), truncate and rename on this host, not the stores of a foreign mapping
// and not other hosts of a network file system: those show at the next commit of ours.
#pragma once

#include <filesystem>
#include <functional>
#include <thread>

#include "core/error.h"
#include "core/unique_fd.h"

namespace stfs {

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// on_event runs on the watcher's thread, once for each burst of events.
  Result<void> start(const std::filesystem::path& file, std::function<void()> on_event);
  void stop();

 private:
  void serve(const std::function<void()>& on_event) const;

  UniqueFd events_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace stfs
