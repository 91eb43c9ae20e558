// Does what a commit leaves to be done, when nobody waits for it any more: a thread that wakes some time
// after a commit (Filesystem::tidy()).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace stfs {

class Janitor {
 public:
  explicit Janitor(std::function<void()> tidy) : tidy_(std::move(tidy)) {}
  ~Janitor() { stop(); }
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  void start();
  /// From any thread: tidy() is due, when no further commit comes for a moment, or at the latest a while
  /// after the first.
  void note_commit();
  /// Ends the thread; what is due by then is left to the caller.
  void stop();

 private:
  void serve();

  const std::function<void()> tidy_;
  std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable wakes_;
  bool is_due_ = false;
  bool has_more_ = false;  // a commit came while we were waiting for none
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
