// inotify and a thread.
#include "fs/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdint>

namespace stfs {
namespace {

// A rewrite is thousands of writes: after the first one, look this much later and then once for all.
constexpr int kBurstMs = 10;

}  // namespace

Result<void> Watcher::start(const std::filesystem::path& file, std::function<void()> on_event) {
  events_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!events_) return fail_system(errno, "inotify", "start");
  constexpr std::uint32_t kEvents = IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF;
  if (::inotify_add_watch(events_.get(), file.c_str(), kEvents) < 0) {
    return fail_system(errno, file.string(), "watch for changes");
  }
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!stop_) return fail_system(errno, "eventfd", "create");
  thread_ = std::thread([this, on_event = std::move(on_event)] { serve(on_event); });
  return {};
}

void Watcher::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watcher::serve(const std::function<void()>& on_event) const {
  std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0}, pollfd{events_.get(), POLLIN, 0}};
  for (;;) {
    ::poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) return;
    if (::poll(waits.data(), 1, kBurstMs) > 0) return;
    std::array<char, 4096> drained{};
    while (::read(events_.get(), drained.data(), drained.size()) > 0) {
    }
    on_event();
  }
}

}  // namespace stfs
