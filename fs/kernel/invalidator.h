// Tells the kernel's caches what they must forget, from a thread of its own: inside a request's
// handler the kernel may wait for a page that this very request holds (KERNEL-NOTES.md).
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
  /// Calls visit for those inodes of a range that the kernel may have in its caches, and for what of them.
  using Visit = std::function<void(Ino ino, Stale::What what)>;
  using VisitCached = std::function<void(const Stale& stale, const Visit& visit)>;
  /// The session must outlive stop().
  Invalidator(fuse_session* session, VisitCached visit_cached)
      : session_(session), visit_cached_(std::move(visit_cached)) {}
  ~Invalidator() { stop(); }
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  void start();
  /// Does the next thing that is queued, on the caller's thread: for who has not called start().
  /// @return false where nothing is queued.
  bool do_next();
  /// Once the loop has ended: works off what is queued without asking the kernel any more. True when that
  /// is done; false where the kernel has not answered the last notification in that time.
  bool finish_within(std::chrono::milliseconds patience);
  /// Works off what is queued, then ends the thread. One that was never started drops what is queued.
  void stop();

  /// Queues, but for the attributes of a single inode, which are told at once where nothing is queued: what
  /// is queued may be about the same bytes. Of a range of inodes, those are told that the kernel may have in
  /// its caches: a notification takes microseconds, and a model may have 300,000. `then` runs after the
  /// caches have forgotten, on the invalidator's thread. That is how a close is answered only when every
  /// other reader will see the new bytes.
  void forget(Stale stale, std::function<void()> then = {});
  /// Queues: the kernel forgets a name, and the file with it where nobody has it open.
  void forget_entry(Ino directory, std::string name);
  /// Queues: the same for many, and the directory's listing.
  void forget_entries(Ino directory, std::vector<std::string> names);
  /// A directory, and a name in it.
  using Entry = std::pair<Ino, std::string>;
  /// Queues: the same for entries of several directories, without their listings.
  void forget_entries(std::vector<Entry> entries);
  /// The same when there is nothing else to do.
  void forget_leftovers(std::vector<Entry> entries);
  /// Returns when the listings and look-ups in the directory that were under way have ended in the kernel,
  /// too. For work on the invalidator's thread.
  void wait_for_listings(Ino directory);
  /// Runs `work` on the invalidator's thread; after its end, at once.
  void run(std::function<void()> work);

 private:
  void serve();
  void forget_at_once(Ino directory, const std::string& name) const;
  /// Every job has been done.
  [[nodiscard]] bool is_idle();
  /// With the mutex held, which it gives up meanwhile.
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
