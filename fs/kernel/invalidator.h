// Tells the kernel's caches what they must forget, from a thread of its own. A notification from inside a
// handler could deadlock: the kernel may wait for a page that the handler's own request locks
// (KERNEL-NOTES.md).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fs/tree/bytes.h"

struct fuse_session;

namespace stfs {

class Invalidator {
 public:
  /// Calls visit for those inodes of a range that the kernel may have cached, with the part of them that it
  /// may have.
  using Visit = std::function<void(Ino ino, Stale::What what)>;
  using VisitCached = std::function<void(const Stale& stale, const Visit& visit)>;
  /// The session must outlive stop().
  Invalidator(fuse_session* session, VisitCached visit_cached)
      : session_(session), visit_cached_(std::move(visit_cached)) {}
  ~Invalidator() { stop(); }
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  void start();
  /// Does the next queued job on the caller's thread. Use it if start() was not called.
  /// @return false if nothing is queued.
  bool do_next();
  /// Call after the session's loop has ended. Finishes the queued jobs without notifications to the kernel.
  /// @return true if all is done; false if the kernel has not answered the last notification in that time.
  bool finish_within(std::chrono::milliseconds patience);
  /// Finishes the queued jobs, then ends the thread. Drops them if the thread was never started.
  void stop();

  /// Queues a notification. The attributes of a single inode are told at once, on the caller's thread, if
  /// nothing is queued: a queued job may concern the same bytes. In a range only those inodes are told that
  /// the kernel may have cached, since a notification takes microseconds and a model may have 300,000
  /// tensors. `then` runs after the caches have forgotten, on the thread that told them. A close replies from
  /// `then`, so that every other reader sees the new bytes once the close has returned.
  void forget(Stale stale, std::function<void()> then = {});
  /// Notifies the kernel on the caller's thread, besides what is queued. Only in a request that locks no
  /// page.
  void forget_here(const Stale& stale) const;
  /// Queues: the kernel forgets a name, and also its file if no process has the file open.
  void forget_entry(Ino directory, std::string name);
  /// Queues: the kernel forgets several names, and the directory's listing.
  void forget_entries(Ino directory, std::vector<std::string> names);
  /// A directory, and a name in it.
  using Entry = std::pair<Ino, std::string>;
  /// Queues: the kernel forgets entries of several directories, but not their listings.
  void forget_entries(std::vector<Entry> entries);
  /// As forget_entries(), but only when no other job is queued.
  void forget_leftovers(std::vector<Entry> entries);
  /// Returns when all listings and look-ups in the directory that were running have ended, in the kernel too.
  /// Call it only from jobs on the invalidator's thread.
  void wait_for_listings(Ino directory);
  /// Queues `work` for the invalidator's thread. Runs it at once if that thread has ended.
  void run(std::function<void()> work);

 private:
  void serve();
  void forget_at_once(Ino directory, const std::string& name) const;
  /// True if all jobs are done.
  [[nodiscard]] bool is_idle();
  /// Does the next job. The caller holds the mutex; it is released during the job.
  void do_next(std::unique_lock<std::mutex>& lock);

  fuse_session* session_;
  const VisitCached visit_cached_;
  std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::condition_variable wakes_;
  std::condition_variable done_;
  std::deque<std::function<void()>> jobs_;
  std::deque<Entry> leftovers_;
  bool is_at_work_ = false;
  bool is_stopping_ = false;
  bool is_done_ = false;
  std::atomic<bool> notifies_ = true;
  std::thread thread_;
};

}  // namespace stfs
