#include "fs/write/commit_turn.h"

#include <limits>
#include <utility>

namespace stfs {

void CommitTurn::lock() {
  MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return !is_held_ && !lent_; });
  is_held_ = true;
}

bool CommitTurn::try_lock() {
  const MutexLock lock(mutex_);
  if (is_held_ || lent_) return false;
  is_held_ = true;
  return true;
}

void CommitTurn::unlock() {
  const MutexLock lock(mutex_);
  is_held_ = false;
  changed_.notify_all();
}

bool CommitTurn::admits(ByteRange blocks) const {
  return !lent_ || (admitted_ > 0 && !lent_->overlaps(blocks));
}

bool CommitTurn::lock_beside(ByteRange blocks) {
  MutexLock lock(mutex_);
  Waiting self{.blocks = blocks, .next = waiting_};
  waiting_ = &self;
  changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return !is_held_ && admits(blocks); });
  Waiting** place = &waiting_;
  while (*place != &self) place = &(*place)->next;
  *place = self.next;
  is_held_ = true;
  if (lent_) {
    --admitted_;
    has_entered_ = true;
  }
  return lent_.has_value();
}

bool CommitTurn::lend(ByteRange blocks, const std::function<void()>& work) {
  MutexLock lock(mutex_);
  unsigned admitted = 0;
  for (const Waiting* one = waiting_; one != nullptr; one = one->next) {
    if (!blocks.overlaps(one->blocks)) ++admitted;
  }
  if (!work && admitted == 0) return false;
  admitted_ = work ? std::numeric_limits<unsigned>::max() : admitted;
  lent_ = blocks;
  is_held_ = false;
  changed_.notify_all();
  if (work) {
    lock.unlock();
    work();
    lock.lock();
    admitted_ = 0;
  }
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return !is_held_ && admitted_ == 0; });
  is_held_ = true;
  lent_.reset();
  return std::exchange(has_entered_, false);
}

}  // namespace stfs
