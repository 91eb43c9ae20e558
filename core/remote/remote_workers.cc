#include "core/remote/remote_workers.h"

#include <unistd.h>

#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/mutex.h"

namespace stfs {
namespace {

// A store gives one request about 90 MB/s, so sixteen fill a line of 10 Gbit/s.
constexpr unsigned kMostThreads = 16;

class Workers {
 public:
  void post(RemoteJob job, Urgency urgency) {
    {
      const MutexLock lock(mutex_);
      (urgency == Urgency::Needed ? needed_ : guessed_).push_back(std::move(job));
      if (idle_ == 0 && threads_ < kMostThreads && try_start()) ++threads_;
      if (threads_ > 0) {
        arrives_.notify_one();
        return;
      }
    }
    HttpConnection connection;
    next()(connection);
  }

 private:
  bool try_start() {
    try {
      std::thread([this] { work(); }).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  [[noreturn]] void work() {
    HttpConnection connection;
    for (;;) next()(connection);
  }

  RemoteJob next() {
    const MutexLock lock(mutex_);
    ++idle_;
    arrives_.wait(mutex_, [this]() REQUIRES(mutex_) { return !needed_.empty() || !guessed_.empty(); });
    --idle_;
    auto& jobs = needed_.empty() ? guessed_ : needed_;
    RemoteJob job = std::move(jobs.front());
    jobs.pop_front();
    return job;
  }

  Mutex mutex_;
  Condition arrives_;
  std::deque<RemoteJob> needed_ GUARDED_BY(mutex_);
  std::deque<RemoteJob> guessed_ GUARDED_BY(mutex_);
  unsigned threads_ GUARDED_BY(mutex_) = 0;
  unsigned idle_ GUARDED_BY(mutex_) = 0;
};

/// The workers of this process. Never destroyed: their threads run to the end of the process.
Workers& workers() {
  static Mutex mutex;  // guards both below
  static Workers* present = nullptr;
  static pid_t owner = 0;
  const MutexLock lock(mutex);
  if (owner != ::getpid()) {
    present = new Workers();
    owner = ::getpid();
  }
  return *present;
}

}  // namespace

void post_remote_job(RemoteJob job, Urgency urgency) {
  workers().post(std::move(job), urgency);
}

}  // namespace stfs
