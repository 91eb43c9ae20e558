// Notices that somebody else writes into, cuts, replaces or deletes a file of the model while it is mounted.
//
// inotify sees every write(2), truncate and rename on this host, not the stores of a foreign mapping
// and not other hosts of a network file system: there who watches has to look again and again. Watched are
// the files themselves, and the names of each directory that one of them lies in, or a link to it: also names
// of files that do not exist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  enum class Next : std::uint8_t {
    Wait,       // for the next event
    LookAgain,  // at all files, in a second
    WatchAnew,  // the files are others now
  };
  /// The files to watch.
  using Files = std::function<std::vector<std::filesystem::path>()>;
  /// Runs on the watcher's thread, once for each burst of events, with the positions of the files that they
  /// are about, ascending; with all of them whenever the watch begins, for what was changed before.
  using OnEvent = std::function<Next(std::span<const std::size_t> files)>;
  /// After a failure the files that could be watched are.
  Result<void> start(Files files, OnEvent on_event);
  void stop();

 private:
  /// The name of a file in a directory of that watch; "" where the watch is the file's own.
  using Watch = std::pair<int, std::string>;

  Result<void> watch_all(std::span<const std::filesystem::path> files);
  Result<void> watch(const std::filesystem::path& file, std::size_t position);
  bool watch_name(const std::filesystem::path& file, std::size_t position);
  void serve(const Files& files, const OnEvent& on_event);
  [[nodiscard]] bool must_stop() const;
  /// False at the end.
  [[nodiscard]] bool wait_for_events(Next next, std::set<std::size_t>& files) const;
  /// Adds the files of the events that wait.
  void take_events(std::set<std::size_t>& files) const;
  [[nodiscard]] std::set<std::size_t> all() const;

  UniqueFd stop_;
  // Of the thread, once it runs:
  UniqueFd events_;
  std::multimap<Watch, std::size_t> watched_;
  std::size_t count_ = 0;
  std::thread thread_;
};

}  // namespace stfs
