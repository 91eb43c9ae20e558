// Notices that somebody else writes into, cuts, replaces or deletes a file of the model while it is mounted.
//
// inotify sees every write(2), truncate and rename on this host, not the stores of a foreign mapping
// and not other hosts of a network file system: those show at the next commit of ours. Watched are the files
// themselves, and the names of each directory that one of them lies in, or a link to it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/unique_fd.h"

namespace stfs {

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// on_event runs on the watcher's thread, once for each burst of events, with the positions of the files
  /// that they are about, ascending. After a failure the files that could be watched are.
  using OnEvent = std::function<void(std::span<const std::size_t> files)>;
  Result<void> start(std::span<const std::filesystem::path> files, OnEvent on_event);
  void stop();

 private:
  /// The name of a file in a directory of that watch; "" where the watch is the file's own.
  using Watch = std::pair<int, std::string>;

  Result<void> watch(const std::filesystem::path& file, std::size_t position);
  void watch_name(const std::filesystem::path& file, std::size_t position);
  void serve(const OnEvent& on_event) const;
  /// Adds the files of the events that wait.
  void take_events(std::set<std::size_t>& files) const;

  UniqueFd events_;
  UniqueFd stop_;
  std::multimap<Watch, std::size_t> watched_;  // not changed once the thread runs
  std::size_t count_ = 0;
  std::thread thread_;
};

}  // namespace stfs
