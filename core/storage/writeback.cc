#include "core/storage/writeback.h"

#include <new>
#include <system_error>

#include "core/base/mutex.h"

namespace stfs {

Writeback::~Writeback() {
  {
    const MutexLock lock(mutex_);
    due_.clear();
  }
  finish();
}

void Writeback::follow(File& file, ByteRange written) {
  const std::uint64_t begin = written.offset / kWindowBytes * kWindowBytes;
  const std::uint64_t end = written.end() / kWindowBytes * kWindowBytes;
  if (begin < end) ask(&File::begin_writeback, file, {begin, end - begin});
}

void Writeback::ask(Call call, File& file, ByteRange range) {
  try {
    const MutexLock lock(mutex_);
    due_.push_back({call, &file, range});
    has_work_.notify_one();
    if (!thread_) thread_.emplace([this] { work(); });
  } catch (const std::bad_alloc&) {  // the later sync has more to do
  } catch (const std::system_error&) {
  }
}

void Writeback::finish() {
  if (!thread_) return;
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }
  has_work_.notify_one();
  thread_->join();
  thread_.reset();
  const MutexLock lock(mutex_);
  is_ending_ = false;
}

void Writeback::work() {
  MutexLock lock(mutex_);
  for (;;) {
    has_work_.wait(mutex_, [this]() REQUIRES(mutex_) { return is_ending_ || !due_.empty(); });
    if (due_.empty()) return;
    const Due due = due_.front();
    due_.pop_front();
    lock.unlock();
    (due.file->*due.call)(due.range);
    lock.lock();
  }
}

}  // namespace stfs
