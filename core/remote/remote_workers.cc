#include "core/remote/remote_workers.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
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
  bool post(RemoteJob job, Urgency urgency) {
    const MutexLock lock(mutex_);
    const bool is_enough = idle_ > needed_.size() + guessed_.size();
    if (!is_enough && threads_ < kMostThreads && try_start()) ++threads_;
    if (threads_ == 0) return false;
    (urgency == Urgency::Needed ? needed_ : guessed_).push_back(std::move(job));
    arrives_.notify_one();
    return true;
  }

  void settle() {
    constexpr std::chrono::seconds kPatience{5};
    const MutexLock lock(mutex_);
    ends_.wait_for(mutex_, kPatience,
                   [this]() REQUIRES(mutex_) { return busy_ == 0 && needed_.empty() && guessed_.empty(); });
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
    for (;;) {
      next()(connection);
      const MutexLock lock(mutex_);
      --busy_;
      ends_.notify_all();
    }
  }

  RemoteJob next() {
    const MutexLock lock(mutex_);
    ++idle_;
    arrives_.wait(mutex_, [this]() REQUIRES(mutex_) { return !needed_.empty() || !guessed_.empty(); });
    --idle_;
    ++busy_;
    auto& jobs = needed_.empty() ? guessed_ : needed_;
    RemoteJob job = std::move(jobs.front());
    jobs.pop_front();
    return job;
  }

  Mutex mutex_;
  Condition arrives_;
  Condition ends_;
  std::deque<RemoteJob> needed_ GUARDED_BY(mutex_);
  std::deque<RemoteJob> guessed_ GUARDED_BY(mutex_);
  unsigned threads_ GUARDED_BY(mutex_) = 0;
  unsigned idle_ GUARDED_BY(mutex_) = 0;
  unsigned busy_ GUARDED_BY(mutex_) = 0;
};

struct OwnWorkers {
  Mutex mutex;
  Workers* workers GUARDED_BY(mutex) = nullptr;
  pid_t owner GUARDED_BY(mutex) = 0;
};

OwnWorkers& own_workers() {
  static OwnWorkers* const of_process = new OwnWorkers();  // never destroyed: threads run to the end
  return *of_process;
}

/// @param makes  whether workers are made if this process has none.
/// @return null only without `makes`. Never destroyed.
Workers* workers(bool makes) {
  OwnWorkers& now = own_workers();
  const MutexLock lock(now.mutex);
  const bool is_own = now.owner == ::getpid();
  if (!is_own && !makes) return nullptr;
  if (!is_own) {
    now.workers = new Workers();
    // After the libraries have registered their ends, which come later then.
    if (now.owner == 0) std::atexit(settle_remote_jobs);
    now.owner = ::getpid();
  }
  return now.workers;
}

}  // namespace

bool post_remote_job(RemoteJob job, Urgency urgency) {
  return workers(true)->post(std::move(job), urgency);
}

void settle_remote_jobs() {
  if (Workers* const own = workers(false)) own->settle();
}

}  // namespace stfs
