// Lists of slots under one lock. One lock is enough: slots change hands only a few thousand times a second.
#include "tools/upload/ring.h"

#include "core/base/mutex.h"

namespace stfs::upload {

Ring::Ring(std::span<std::byte> memory, std::uint64_t slot_bytes, unsigned slots, std::size_t devices)
    : memory_(memory), slot_bytes_(slot_bytes), pending_(slots), queues_(devices) {
  // acquire() takes the slot that was returned last, because its bytes are still in the cache.
  for (unsigned slot = slots; slot-- > 0;) free_.push_back(slot);
}

std::optional<std::uint32_t> Ring::acquire() {
  const MutexLock lock(mutex_);
  freed_.wait(mutex_, [&]() REQUIRES(mutex_) { return is_stopped_ || !free_.empty(); });
  if (is_stopped_) return std::nullopt;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Ring::fill(Filled filled, std::span<const std::uint32_t> devices) {
  {
    const MutexLock lock(mutex_);
    pending_[filled.slot] = devices.size();
    for (const std::uint32_t device : devices) queues_[device].push_back(filled);
  }
  filled_.notify_all();
}

std::optional<Ring::Filled> Ring::next(std::uint32_t device, bool can_wait) {
  const MutexLock lock(mutex_);
  std::deque<Filled>& queue = queues_[device];
  if (can_wait)
    filled_.wait(mutex_, [&]() REQUIRES(mutex_) { return is_stopped_ || is_ended_ || !queue.empty(); });
  if (is_stopped_ || queue.empty()) return std::nullopt;
  const Filled filled = queue.front();
  queue.pop_front();
  return filled;
}

bool Ring::release(std::uint32_t slot) {
  {
    const MutexLock lock(mutex_);
    if (--pending_[slot] > 0) return false;
    free_.push_back(slot);
  }
  freed_.notify_one();
  return true;
}

void Ring::end() {
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
  }
  filled_.notify_all();
}

void Ring::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
  }
  filled_.notify_all();
  freed_.notify_all();
}

}  // namespace stfs::upload
