// Waits for events on a thread.
#include "fs/follow/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "fs/base/log.h"

namespace stfs {
namespace {

// A rewrite makes thousands of writes. This is the pause after the first event, so that one check covers
// many.
constexpr int kBurstMs = 10;

}  // namespace

Result<void> Watcher::start(Files files, OnEvent on_event) {
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!stop_) return fail_system(errno, "eventfd", "create");
  const auto all_watched = events_.watch(files());
  if (!events_.is_open()) return all_watched;
  thread_ = std::thread(
      [this, files = std::move(files), on_event = std::move(on_event)] { serve(files, on_event); });
  return all_watched;
}

void Watcher::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watcher::serve(const Files& files, const OnEvent& on_event) {
  // The loop checks must_stop() itself: if files are replaced again and again, it never waits for events.
  for (std::set<std::size_t> changed = events_.all(); !must_stop();) {
    const std::vector<std::size_t> positions(changed.begin(), changed.end());
    const Next next = positions.empty() ? Next::Wait : on_event(positions);
    if (next != Next::WatchAnew) {
      if (!wait_for_events(next, changed)) return;
      continue;
    }
    if (auto watched = events_.watch(files()); !watched) {
      log::warning("{}; changes by other programs show at the next commit only", watched.error().message);
      if (!events_.is_open()) return;
    }
    changed = events_.all();
  }
}

bool Watcher::must_stop() const {
  pollfd told = {stop_.get(), POLLIN, 0};
  return ::poll(&told, 1, 0) > 0;
}

bool Watcher::wait_for_events(Next next, std::set<std::size_t>& files) const {
  constexpr int kSoonMs = 50;
  constexpr int kAgainMs = 1000;
  const int timeout_ms = next == Next::LookSoon ? kSoonMs : next == Next::LookAgain ? kAgainMs : -1;
  std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0}, pollfd{events_.descriptor(), POLLIN, 0}};
  const int ready = ::poll(waits.data(), waits.size(), timeout_ms);
  if (waits[0].revents != 0 || (ready > 0 && ::poll(waits.data(), 1, kBurstMs) > 0)) return false;
  files = ready == 0 ? events_.all() : std::set<std::size_t>();
  events_.take_events(files);
  return true;
}

}  // namespace stfs
