#include "tests/support/lock_table.h"

namespace stfs::test {

bool LockTable::has_conflict(InodeNumber inode, Description owner, ByteRange range, LockKind kind) const {
  for (const Lock& lock : locks_) {
    if (lock.inode != inode || lock.owner == owner || !lock.range.overlaps(range)) continue;
    if (lock.kind == LockKind::Exclusive || kind == LockKind::Exclusive) return true;
  }
  return false;
}

bool LockTable::take(InodeNumber inode, Description owner, pid_t process, ByteRange range, LockKind kind) {
  if (has_conflict(inode, owner, range, kind)) return false;
  give_back(inode, owner, range);
  locks_.push_back({inode, owner, process, range, kind});
  return true;
}

std::optional<pid_t> LockTable::holder(InodeNumber inode, Description asking, ByteRange range) const {
  for (const Lock& lock : locks_) {
    if (lock.inode == inode && lock.owner != asking && lock.range.overlaps(range)) return lock.process;
  }
  return std::nullopt;
}

void LockTable::give_back(InodeNumber inode, Description owner, ByteRange range) {
  std::vector<Lock> left;
  for (const Lock& lock : locks_) {
    if (lock.inode != inode || lock.owner != owner || !lock.range.overlaps(range)) {
      left.push_back(lock);
      continue;
    }
    Lock part = lock;
    if (lock.range.offset < range.offset) {
      part.range = {lock.range.offset, range.offset - lock.range.offset};
      left.push_back(part);
    }
    if (lock.range.end() > range.end()) {
      part.range = {range.end(), lock.range.end() - range.end()};
      left.push_back(part);
    }
  }
  locks_ = std::move(left);
}

void LockTable::drop_description(Description owner) {
  std::erase_if(locks_, [&](const Lock& lock) { return lock.owner == owner; });
}

void LockTable::drop_process(pid_t process) {
  std::erase_if(locks_, [&](const Lock& lock) { return lock.process == process; });
}

}  // namespace stfs::test
