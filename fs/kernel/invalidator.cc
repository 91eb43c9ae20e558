#include "fs/kernel/invalidator.h"

#include <fuse_lowlevel.h>

#include <cerrno>
#include <utility>

#include "fs/base/log.h"
#include "fs/base/survive.h"

namespace stfs {
namespace {

// The kernel forgets an entry under the directory's lock. Listings and look-ups hold that lock until they
// have added their entries to the caches. The caches never have this entry. A notice of it returns after all
// listings and look-ups that were running.
constexpr const char* kNoEntry = ".";

}  // namespace

void Invalidator::start() {
  contents_.start("invalidator");
  names_.start("name-notices");
}

bool Invalidator::finish_within(std::chrono::milliseconds patience) {
  notifies_ = false;
  const bool has_finished = contents_.finish_within(patience);
  return names_.finish_within(patience) && has_finished;
}

void Invalidator::give_up() {
  contents_.give_up();
  names_.give_up();
}

void Invalidator::stop() {
  contents_.stop();
  names_.stop();
}

bool Invalidator::do_next() {
  return contents_.do_next() || names_.do_next();
}

void Invalidator::forget(Stale stale, std::function<void()> then) {
  // Forgetting one inode's attributes waits for no page, so no other thread is needed, and each small commit
  // saves a wake-up. But if jobs are queued, a check for changes may have marked a page as forgotten that the
  // kernel still has. Then the commit's caller must wait for that job.
  if (stale.what == Stale::What::Attributes && stale.first == stale.last && contents_.is_idle()) {
    survive("invalidator", [&] { forget_here(stale); });
    if (then) then();
    return;
  }
  run([this, stale, then = std::move(then)] {
    // A caller waits for `then`, so it runs even after an error.
    survive("invalidator", [&] { forget_here(stale); });
    if (then) then();
  });
}

void Invalidator::forget_here(const Stale& stale) {
  if (stale.what == Stale::What::Nothing) return;
  Unknown unknown;
  if (stale.first == stale.last) {
    tell(stale.first, stale.what, unknown);
  } else {
    visit_cached_(stale, [&](Ino ino, Stale::What what) { tell(ino, what, unknown); });
  }
  if (!unknown.empty()) tell_again(std::move(unknown));
}

void Invalidator::tell(Ino ino, Stale::What what, Unknown& unknown) const {
  if (!notifies_) return;
  // A negative offset means only the attributes. The call fails for an inode that the kernel does not know.
  // No other failure is possible while the mount lives.
  const off_t offset = what == Stale::What::Content ? 0 : -1;
  if (fuse_lowlevel_notify_inval_inode(session_, ino, offset, 0) != -ENOENT || !directory_of_) return;
  if (const Ino directory = directory_of_(ino); directory != 0)
    unknown[directory].push_back(Stale::one(ino, what));
}

void Invalidator::tell_again(Unknown unknown) {
  names_.run([this, unknown = std::move(unknown)] {
    for (const auto& [directory, inodes] : unknown) {
      forget_at_once(directory, kNoEntry);
      Unknown gone;
      for (const Stale& inode : inodes) tell(inode.first, inode.what, gone);
    }
  });
}

void Invalidator::forget_entry(Ino directory, std::string name) {
  names_.run([this, directory, name = std::move(name)] { forget_at_once(directory, name); });
}

void Invalidator::forget_entries(Ino directory, std::vector<std::string> names) {
  names_.run([this, directory, names = std::move(names)] {
    for (const std::string& name : names) forget_at_once(directory, name);
    if (notifies_) fuse_lowlevel_notify_inval_inode(session_, directory, 0, 0);
  });
}

void Invalidator::forget_entries(std::vector<Entry> entries) {
  names_.run([this, entries = std::move(entries)] {
    for (const auto& [directory, name] : entries) forget_at_once(directory, name);
  });
}

void Invalidator::forget_leftovers(std::vector<Entry> entries) {
  for (Entry& entry : entries) {
    names_.run_when_idle([this, entry = std::move(entry)] { forget_at_once(entry.first, entry.second); });
  }
}

void Invalidator::forget_at_once(Ino directory, const std::string& name) {
  if (!notifies_) return;
  directory_at_work_ = directory;
  fuse_lowlevel_notify_inval_entry(session_, directory, name.c_str(), name.size());
  directory_at_work_ = 0;
}

void Invalidator::wait_for_names() {
  if (names_.wait_for_queued(kPatience)) return;
  const Ino directory = directory_at_work_;
  if (directory == 0) return;
  log::warning(
      "{}: a program holds this directory: what was renamed, made or removed in the mount may show late",
      label_ ? label_(directory) : "");
}

void Invalidator::wait_for_listings(Ino directory, std::function<void()> before) {
  names_.run([this, directory, before = std::move(before)] {
    before();
    forget_at_once(directory, kNoEntry);
  });
  wait_for_names();
}

void Invalidator::run(std::function<void()> work) {
  contents_.run(std::move(work));
}

void Invalidator::run_after_names(std::function<void()> work) {
  names_.run(std::move(work));
}

}  // namespace stfs
