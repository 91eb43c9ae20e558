// Notices when another program writes into, cuts, replaces or deletes a file of the model while it is
// mounted.
//
// inotify reports every write(2), truncate and rename on this host. It reports neither stores through another
// program's mapping nor changes by other hosts of a network file system: there the files must be checked
// again and again. The watch covers the files themselves, and the names in each directory that contains one
// of them or a link to one, also names of files that do not exist. A path that ends with a slash stands for
// the archives that come into this directory or are closed there after a write.
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
    Wait,       // wait for the next event
    LookAgain,  // check all files in a second
    WatchAnew,  // the list of files has changed
  };
  /// The files to watch.
  using Files = std::function<std::vector<std::filesystem::path>()>;
  /// Runs on the watcher's thread, once for each burst of events. Gets the positions of the files that the
  /// events concern, ascending. Whenever a watch begins, it gets all positions, because files may have
  /// changed before.
  using OnEvent = std::function<Next(std::span<const std::size_t> files)>;
  /// Starts the watch and its thread. After a failure it still watches the files that can be watched.
  Result<void> start(Files files, OnEvent on_event);
  void stop();

 private:
  /// A watch, and the name of a file in the watched directory, "" for a watch on the file itself, or kAny.
  using Watch = std::pair<int, std::string>;

  Result<void> watch_all(std::span<const std::filesystem::path> files);
  Result<void> watch(const std::filesystem::path& file, std::size_t position);
  /// A name that no file has: all archives of a directory.
  static constexpr const char* kAny = "/";
  bool watch_name(const std::filesystem::path& file, std::size_t position);
  void serve(const Files& files, const OnEvent& on_event);
  [[nodiscard]] bool must_stop() const;
  /// Waits for events, and sets `files` to the positions of their files. False if the thread must end.
  [[nodiscard]] bool wait_for_events(Next next, std::set<std::size_t>& files) const;
  /// Reads the pending events, and adds the positions of their files.
  void take_events(std::set<std::size_t>& files) const;
  [[nodiscard]] std::set<std::size_t> all() const;

  UniqueFd stop_;
  // Once the thread runs, only the thread uses these:
  UniqueFd events_;
  std::multimap<Watch, std::size_t> watched_;
  std::size_t count_ = 0;
  std::thread thread_;
};

}  // namespace stfs
