#include "tools/device/later_releases.h"

#include <unistd.h>

#include <utility>

#include "core/base/mutex.h"

namespace stfs::device {

LaterReleases& LaterReleases::of_process() {
  static LaterReleases releases;
  return releases;
}

LaterReleases::~LaterReleases() {
  if (!thread_.joinable()) return;
  if (is_of_parent()) {
    thread_.detach();
    return;
  }
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool LaterReleases::is_of_parent() const {
  const pid_t process = process_;
  return process != 0 && process != ::getpid();
}

void LaterReleases::add(std::function<void()> release) noexcept {
  if (is_of_parent()) {
    release();
    return;
  }
  try {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { work(); });
      process_ = ::getpid();
    }
    waiting_.push_back(release);
    ++added_;
  } catch (...) {
    release();
    return;
  }
  changed_.notify_all();
}

void LaterReleases::wait() {
  if (is_of_parent()) return;
  const MutexLock lock(mutex_);
  const std::size_t last = added_;
  changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return done_ >= last; });
}

void LaterReleases::work() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return is_ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> release = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    release();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace stfs::device
