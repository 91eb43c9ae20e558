#include "fs/follow/follower.h"

#include <utility>

#include "fs/kernel/invalidator.h"

namespace stfs {
namespace {

// Leftovers are forgotten at the change and once more a while later: a program may have been walking the old
// tree in between.
constexpr int kTimesForgotten = 2;

}  // namespace

std::vector<std::filesystem::path> Follower::files() {
  watched_ = mount_.mount_root.watched_files();
  std::vector<std::filesystem::path> paths;
  for (const MountRoot::WatchedFile& file : watched_) paths.push_back(file.path);
  return paths;
}

Watcher::Next Follower::look(std::span<const std::size_t> changed) {
  MountRoot& mount_root = mount_.mount_root;
  Invalidator& invalidator = *mount_.invalidator;
  Watcher::Next next = mount_root.has_remote_files() ? Watcher::Next::LookAgain : Watcher::Next::Wait;
  bool is_refused = false;
  for (const std::size_t file : changed) {
    MountRoot::Change change = mount_root.check_for_change(watched_[file]);
    for (const Stale& stale : change.stale) invalidator.forget(stale);
    if (!change.entries.empty()) {
      invalidator.forget_entries(kRootIno, std::move(change.entries));
      // Entries in all directories are forgotten before the log says that the model is refused.
      is_refused = !change.is_reopened;
      if (is_refused) invalidator.forget_entries(mount_root.leftovers());
      invalidator.run_after_names([&mount = mount_] { mount.links_listed_root = true; });
      times_left_ = kTimesForgotten;
    }
    if (change.has_leftovers) times_left_ = kTimesForgotten;
    if (change.tell) {
      invalidator.run_after_names([&invalidator, tell = std::move(change.tell)] { invalidator.run(tell); });
    }
    if (change.is_reopened) return Watcher::Next::WatchAnew;
    if (change.is_due_again && next == Watcher::Next::Wait) next = Watcher::Next::LookAgain;
    if (change.is_due_soon && next == Watcher::Next::Wait) next = Watcher::Next::LookSoon;
  }
  if (times_left_ == 0) return next;
  if (!is_refused) invalidator.forget_leftovers(mount_root.leftovers());
  return --times_left_ == 0 ? next : Watcher::Next::LookAgain;
}

}  // namespace stfs
