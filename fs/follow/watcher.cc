#include "fs/follow/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "fs/base/log.h"
#include "fs/base/survive.h"

namespace stfs {
namespace {

// A rewrite makes thousands of writes. The pause after the first event lets one check cover many of them.
constexpr int kBurstMs = 10;
constexpr std::chrono::milliseconds kSoon{50};
constexpr std::chrono::milliseconds kAgain{1000};
constexpr std::chrono::milliseconds kLong{500};

}  // namespace

class Watcher::Look {
 public:
  explicit Look(Watcher& watcher) : watcher_(watcher) {
    const MutexLock lock(watcher_.mutex_);
    watcher_.is_looking_ = true;
    ++watcher_.looks_;
    watcher_.wakes_.notify_one();
  }
  ~Look() {
    const MutexLock lock(watcher_.mutex_);
    watcher_.is_looking_ = false;
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

 private:
  Watcher& watcher_;
};

Result<void> Watcher::start(Files files, OnEvent on_event, OnLongLook on_long_look) {
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!stop_) return fail_system(errno, "eventfd", "create");
  const auto all_watched = events_.watch(files());
  if (!events_.is_open()) return all_watched;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = false;
  }
  if (on_long_look)
    beside_ = std::thread([this, on_long_look = std::move(on_long_look)] { serve_long_looks(on_long_look); });
  thread_ = std::thread(
      [this, files = std::move(files), on_event = std::move(on_event)] { serve(files, on_event); });
  return all_watched;
}

void Watcher::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  wakes_.notify_one();
  if (beside_.joinable()) beside_.join();
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watcher::serve(const Files& files, const OnEvent& on_event) {
  const auto start = [this] { changed_ = events_.all(); };
  if (!survive("watcher", start)) look_again_in(kAgain);
  // The loop checks must_stop() itself, because it never waits for events if files are replaced repeatedly.
  while (!must_stop()) {
    {
      const Look look_begins(*this);
      if (!survive("watcher", [&] { look(files, on_event); })) look_again_in(kAgain);
    }
    if (must_watch_anew_ && !due_) continue;
    if (!events_.is_open()) return;
    bool goes_on = true;
    if (!survive("watcher", [&] { goes_on = wait_for_events(); })) look_again_in(kAgain);
    if (!goes_on) return;
  }
}

void Watcher::serve_long_looks(const OnLongLook& on_long_look) {
  MutexLock lock(mutex_);
  for (;;) {
    wakes_.wait(mutex_, [this]() REQUIRES(mutex_) { return is_stopping_ || is_looking_; });
    const std::uint64_t begun = looks_;
    wakes_.wait_for(mutex_, kLong, [this]() REQUIRES(mutex_) { return is_stopping_; });
    if (is_stopping_) return;
    if (!is_looking_ || looks_ != begun) continue;
    lock.unlock();
    survive("watcher", on_long_look);
    lock.lock();
  }
}

void Watcher::look(const Files& files, const OnEvent& on_event) {
  if (must_watch_anew_) {
    if (auto watched = events_.watch(files()); !watched) {
      log::warning("{}; changes by other programs show at the next commit only", watched.error().message);
    }
    changed_ = events_.all();
    must_watch_anew_ = false;
  }
  const std::vector<std::size_t> positions(changed_.begin(), changed_.end());
  if (positions.empty()) return;
  switch (on_event(positions)) {
    case Next::Wait: break;
    case Next::LookSoon: look_again_in(kSoon); break;
    case Next::LookAgain: look_again_in(kAgain); break;
    case Next::WatchAnew:
      must_watch_anew_ = true;
      due_.reset();
      break;
  }
}

void Watcher::look_again_in(std::chrono::milliseconds time) {
  const Clock::time_point then = Clock::now() + time;
  due_ = due_ ? std::min(*due_, then) : then;
}

bool Watcher::must_stop() const {
  pollfd told = {stop_.get(), POLLIN, 0};
  return ::poll(&told, 1, 0) > 0;
}

bool Watcher::wait_for_events() {
  using std::chrono::milliseconds;
  const auto left = due_ ? std::max(std::chrono::ceil<milliseconds>(*due_ - Clock::now()), milliseconds(0))
                         : milliseconds(-1);
  std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0}, pollfd{events_.descriptor(), POLLIN, 0}};
  const int ready = ::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
  if (waits[0].revents != 0 || (ready > 0 && ::poll(waits.data(), 1, kBurstMs) > 0)) return false;
  changed_.clear();
  events_.take_events(changed_);
  if (due_ && *due_ <= Clock::now()) {
    changed_ = events_.all();
    due_.reset();
  }
  return true;
}

}  // namespace stfs
