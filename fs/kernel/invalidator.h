// Tells the kernel's caches what they must forget, from threads of its own. A notification from inside a
// handler could deadlock: the kernel may wait for a page that the handler's own request locks
// (fs/KERNEL.md).
//
// Notices of names have a thread apart: the kernel takes the directory's lock for them, and any user who may
// list a directory can hold that lock for as long as they like. No reply waits behind these notices without
// bound, and no notice of contents does.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fs/kernel/notice_queue.h"
#include "fs/tree/bytes.h"

struct fuse_session;

namespace stfs {

class Invalidator {
 public:
  /// Calls visit for those inodes of a range that the kernel may have cached, with the part of them that it
  /// may have.
  using Visit = std::function<void(Ino ino, Stale::What what)>;
  using VisitCached = std::function<void(const Stale& stale, const Visit& visit)>;
  /// What the log calls a directory.
  using Label = std::function<std::string(Ino directory)>;
  /// How long a reply waits for notices of names.
  static constexpr std::chrono::seconds kPatience{2};

  /// The session must outlive stop().
  Invalidator(fuse_session* session, VisitCached visit_cached, Label label = {})
      : session_(session), visit_cached_(std::move(visit_cached)), label_(std::move(label)) {}
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  void start();
  /// Does the next queued job on the caller's thread. Use it if start() was not called.
  /// @return false if nothing is queued.
  bool do_next();
  /// Call after the session's loop has ended. Finishes the queued jobs without notifications to the kernel.
  /// @return true if all is done; false if the kernel has not answered the last notification in that time.
  bool finish_within(std::chrono::milliseconds patience);
  /// Drops what is queued, if a thread waits in the kernel. Neither this object nor the session may be
  /// destroyed then.
  void give_up();
  /// Finishes the queued jobs, then ends the threads. Drops them if these were never started.
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
  /// As forget_entries(), but only when no other notice of names is queued.
  void forget_leftovers(std::vector<Entry> entries);
  /// Waits until the kernel has forgotten the names that were queued before, but kPatience at most: then the
  /// log tells once which directory is held, and until that is free nobody waits again. Call it from no
  /// request for which the kernel holds a directory's lock.
  void wait_for_names();
  /// Waits until all listings and look-ups in the directory that were running have ended, in the kernel too,
  /// but as wait_for_names().
  /// @param before  is called before, in its turn among the notices of names.
  void wait_for_listings(Ino directory, std::function<void()> before);
  /// Queues `work` behind the notices of contents. Runs it at once if the thread has ended.
  void run(std::function<void()> work);
  /// The same, behind the notices of names. No reply may wait for it.
  void run_after_names(std::function<void()> work);

 private:
  void forget_at_once(Ino directory, const std::string& name);

  fuse_session* session_;
  const VisitCached visit_cached_;
  const Label label_;
  std::atomic<bool> notifies_ = true;
  std::atomic<Ino> directory_at_work_ = 0;  // the kernel has been told of a name in it, and has not answered
  NoticeQueue contents_;
  NoticeQueue names_;
};

}  // namespace stfs
