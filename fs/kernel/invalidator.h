// Tells the kernel's caches what they must forget, from its own threads. A notification from inside a handler
// could deadlock, because the kernel may wait for a page that the handler's own request locks (fs/KERNEL.md).
//
// Notices of names have a separate thread. The kernel takes the directory's lock for them, and any user who
// may list a directory can hold that lock for any time. No reply waits for these notices without limit, and
// no notice of contents waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fs/kernel/notice_queue.h"
#include "fs/tree/bytes.h"

struct fuse_session;

namespace stfs {

class Invalidator {
 public:
  /// Calls visit for each inode of a range that the kernel may have cached, with the part that it may have
  /// cached.
  using Visit = std::function<void(Ino ino, Stale::What what)>;
  using VisitCached = std::function<void(const Stale& stale, const Visit& visit)>;
  /// Returns the directory of an inode for which a look-up may be under way, else 0.
  using DirectoryOf = std::function<Ino(Ino ino)>;
  /// Returns the name of a directory for the log.
  using Label = std::function<std::string(Ino directory)>;
  /// The longest time that a reply waits for notices of names.
  static constexpr std::chrono::seconds kPatience{2};

  /// The session must outlive stop().
  Invalidator(fuse_session* session, VisitCached visit_cached, DirectoryOf directory_of = {},
              Label label = {})
      : session_(session),
        visit_cached_(std::move(visit_cached)),
        directory_of_(std::move(directory_of)),
        label_(std::move(label)) {}
  Invalidator(const Invalidator&) = delete;
  Invalidator& operator=(const Invalidator&) = delete;

  void start();
  /// Does the next queued job on the caller's thread. Use it if start() was not called.
  /// @return false if nothing is queued.
  bool do_next();
  /// Call after the session's loop has ended. Finishes the queued jobs without notifications to the kernel.
  /// @return true if all jobs are done; false if the kernel has not answered the last notification in this
  /// time.
  bool finish_within(std::chrono::milliseconds patience);
  /// Drops the queued jobs, if a thread waits in the kernel. In this case neither this object nor the session
  /// may be destroyed.
  void give_up();
  /// Finishes the queued jobs, then ends the threads. Drops the jobs if the threads were never started.
  void stop();

  /// Queues a notification. If nothing is queued, the kernel is told of a single inode's attributes at once,
  /// on the caller's thread; a queued job may concern the same bytes. In a range, the kernel is told only of
  /// inodes that it may have cached, because a notification takes microseconds and a model may have 300,000
  /// tensors. `then` runs after the caches have forgotten, on the thread that told them. A close replies from
  /// `then`, so every other reader sees the new bytes once the close has returned.
  void forget(Stale stale, std::function<void()> then = {});
  /// Notifies the kernel on the caller's thread, in parallel to the queue. Call only in a request that locks
  /// no page.
  void forget_here(const Stale& stale);
  /// Queues a notice that makes the kernel forget a name, and also its file if no process has the file open.
  void forget_entry(Ino directory, std::string name);
  /// Queues a notice that makes the kernel forget several names and the directory's listing.
  void forget_entries(Ino directory, std::vector<std::string> names);
  /// A directory, and a name in it.
  using Entry = std::pair<Ino, std::string>;
  /// Queues a notice that makes the kernel forget entries of several directories, but not their listings.
  void forget_entries(std::vector<Entry> entries);
  /// Acts as forget_entries(), but only when no other notice of names is queued.
  void forget_leftovers(std::vector<Entry> entries);
  /// Waits until the kernel has forgotten the names that were queued earlier, at most for kPatience. After
  /// this time the log names the held directory once, and no call waits again until the directory is free. Do
  /// not call in a request for which the kernel holds a directory's lock.
  void wait_for_names();
  /// Waits until all running listings and look-ups in the directory have ended, also in the kernel. The wait
  /// is limited as in wait_for_names().
  /// @param before  called before the notice, in its turn among the notices of names.
  void wait_for_listings(Ino directory, std::function<void()> before);
  /// Queues `work` after the notices of contents. Runs it at once if the thread has ended.
  void run(std::function<void()> work);
  /// Acts as run(), after the notices of names. No reply may wait for `work`.
  void run_after_names(std::function<void()> work);

 private:
  /// Inodes that the kernel did not know, by directory.
  using Unknown = std::map<Ino, std::vector<Stale>>;
  void tell(Ino ino, Stale::What what, Unknown& unknown) const;
  /// Notifies the kernel again when the running look-ups and listings of the directories have ended. The
  /// reply of such a look-up may contain attributes from before the change.
  void tell_again(Unknown unknown);
  void forget_at_once(Ino directory, const std::string& name);

  fuse_session* session_;
  const VisitCached visit_cached_;
  const DirectoryOf directory_of_;
  const Label label_;
  std::atomic<bool> notifies_ = true;
  // The directory of a name that the kernel has been told to forget, until the kernel answers; otherwise 0.
  std::atomic<Ino> directory_at_work_ = 0;
  NoticeQueue contents_;
  NoticeQueue names_;
};

}  // namespace stfs
