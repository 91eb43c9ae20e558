// Runs notifications to the kernel from a queue, on one thread.
#include "fs/kernel/invalidator.h"

#include <fuse_lowlevel.h>
#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fs/base/log.h"
#include "fs/base/survive.h"

namespace stfs {

void Invalidator::start() {
  thread_ = std::thread([this] { serve(); });
}

bool Invalidator::finish_within(std::chrono::milliseconds patience) {
  notifies_ = false;
  std::unique_lock lock(mutex_);
  is_stopping_ = true;
  wakes_.notify_one();
  return done_.wait_for(lock, patience, [this] { return is_done_; });
}

void Invalidator::stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
  }
  wakes_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Invalidator::forget(Stale stale, std::function<void()> then) {
  // Forgetting one inode's attributes waits for no page, so it needs no other thread: each small commit saves
  // a wake-up. But if jobs are queued, a check for changes may have marked a page as forgotten that the
  // kernel still has. Then the commit's caller must wait for that job.
  if (stale.what == Stale::What::Attributes && stale.first == stale.last && is_idle()) {
    if (notifies_) fuse_lowlevel_notify_inval_inode(session_, stale.first, -1, 0);
    if (then) then();
    return;
  }
  run([this, stale, then = std::move(then)] {
    // A caller waits for `then`, whatever happens before.
    survive("invalidator", [&] { forget_here(stale); });
    if (then) then();
  });
}

void Invalidator::forget_here(const Stale& stale) const {
  // A negative offset means only the attributes. The call fails for an inode that the kernel does not know,
  // which has nothing to forget. No other failure is possible while the mount lives.
  const auto tell = [this](Ino ino, Stale::What what) {
    const off_t offset = what == Stale::What::Content ? 0 : -1;
    if (notifies_) fuse_lowlevel_notify_inval_inode(session_, ino, offset, 0);
  };
  if (stale.what == Stale::What::Nothing) return;
  stale.first == stale.last ? tell(stale.first, stale.what) : visit_cached_(stale, tell);
}

void Invalidator::forget_entry(Ino directory, std::string name) {
  run([this, directory, name = std::move(name)] { forget_at_once(directory, name); });
}

void Invalidator::forget_entries(Ino directory, std::vector<std::string> names) {
  run([this, directory, names = std::move(names)] {
    for (const std::string& name : names) forget_at_once(directory, name);
    if (notifies_) fuse_lowlevel_notify_inval_inode(session_, directory, 0, 0);
  });
}

void Invalidator::forget_entries(std::vector<Entry> entries) {
  run([this, entries = std::move(entries)] {
    for (const auto& [directory, name] : entries) forget_at_once(directory, name);
  });
}

void Invalidator::forget_leftovers(std::vector<Entry> entries) {
  {
    const std::scoped_lock lock(mutex_);
    std::ranges::move(entries, std::back_inserter(leftovers_));
  }
  wakes_.notify_one();
}

void Invalidator::forget_at_once(Ino directory, const std::string& name) const {
  if (notifies_) fuse_lowlevel_notify_inval_entry(session_, directory, name.c_str(), name.size());
}

void Invalidator::wait_for_listings(Ino directory) {
  // The kernel forgets an entry under the directory's lock. Listings and look-ups hold that lock until they
  // have added their entries to the caches. This entry is never in them.
  forget_at_once(directory, ".");
}

void Invalidator::run(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  if (is_done_) {
    lock.unlock();
    survive("invalidator", work);  // a caller may be waiting for it
    return;
  }
  jobs_.push_back(std::move(work));
  lock.unlock();
  wakes_.notify_one();
}

bool Invalidator::do_next() {
  std::unique_lock lock(mutex_);
  if (jobs_.empty() && leftovers_.empty()) return false;
  do_next(lock);
  return true;
}

bool Invalidator::is_idle() {
  const std::scoped_lock lock(mutex_);
  return jobs_.empty() && !is_at_work_;
}

void Invalidator::do_next(std::unique_lock<std::mutex>& lock) {
  if (!jobs_.empty()) {
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    is_at_work_ = true;
    lock.unlock();
    survive("invalidator", job);
    lock.lock();
    is_at_work_ = false;
  } else {
    const auto [directory, name] = std::move(leftovers_.front());
    leftovers_.pop_front();
    lock.unlock();
    forget_at_once(directory, name);
    lock.lock();
  }
}

void Invalidator::serve() {
  pthread_setname_np(pthread_self(), "invalidator");  // for debuggers, and for a test that halts this thread
  std::unique_lock lock(mutex_);
  for (;;) {
    wakes_.wait(lock, [this] { return is_stopping_ || !jobs_.empty() || !leftovers_.empty(); });
    if (jobs_.empty() && is_stopping_) {
      is_done_ = true;
      done_.notify_all();
      return;
    }
    do_next(lock);
  }
}

}  // namespace stfs
