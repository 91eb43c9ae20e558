// Notices when another program writes into, truncates, replaces or deletes a file of the model while it is
// mounted.
//
// core/model/file_watch.h says which changes are noticed.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/model/file_watch.h"

namespace stfs {

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  enum class Next : std::uint8_t {
    Wait,       // wait for the next event
    LookSoon,   // check all files in 50 milliseconds; for files that other hosts don't write to
    LookAgain,  // check all files in a second
    WatchAnew,  // the list of files has changed
  };
  /// The files to watch.
  using Files = std::function<std::vector<std::filesystem::path>()>;
  /// Runs on the watcher's thread, once for each burst of events. Gets the positions of the files that the
  /// events concern, ascending. When a watch begins, it gets all positions, because files may have changed
  /// earlier.
  using OnEvent = std::function<Next(std::span<const std::size_t> files)>;
  /// Work that must not wait until a long look ends: another user may hold a directory or a file in the
  /// kernel, for as long as that user wants, and the watcher's thread then waits there.
  using OnLongLook = std::function<void()>;
  /// Starts the watch and its threads. After a failure it still watches the files that can be watched.
  /// @param on_long_look  called on another thread twice a second during a look that takes longer than that.
  Result<void> start(Files files, OnEvent on_event, OnLongLook on_long_look = {});
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  /// Lasts as long as one look.
  class Look;

  void serve_long_looks(const OnLongLook& on_long_look);
  void serve(const Files& files, const OnEvent& on_event);
  /// Sets the watch again if must_watch_anew_ is set, then checks the changed files, and notes when the next
  /// check is due.
  void look(const Files& files, const OnEvent& on_event);
  /// Requests a check of all files after this time, or earlier.
  void look_again_in(std::chrono::milliseconds time);
  [[nodiscard]] bool must_stop() const;
  /// Waits for events or for the time of the next check, and sets `changed_`. False if the thread must end.
  [[nodiscard]] bool wait_for_events();

  UniqueFd stop_;
  // While the thread runs, only the thread uses these members:
  FileWatch events_;
  bool must_watch_anew_ = false;
  std::set<std::size_t> changed_;
  std::optional<Clock::time_point> due_;  // when all files must be checked, even after other checks
  std::thread thread_;

  Mutex mutex_;
  Condition wakes_;
  bool is_looking_ GUARDED_BY(mutex_) = false;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::uint64_t looks_ GUARDED_BY(mutex_) = 0;
  std::thread beside_;  // calls `on_long_look`
};

}  // namespace stfs
