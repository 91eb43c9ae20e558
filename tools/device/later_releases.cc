#include "tools/device/later_releases.h"

#include <unistd.h>

#include <utility>

namespace stfs::upload {

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
    const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
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
  std::unique_lock lock(mutex_);
  const std::size_t last = added_;
  changed_.wait(lock, [&] { return done_ >= last; });
}

void LaterReleases::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !waiting_.empty(); });
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

}  // namespace stfs::upload
