// inotify and a thread.
#include "fs/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

// A rewrite is thousands of writes: after the first one, look this much later and then once for all.
constexpr int kBurstMs = 10;

}  // namespace

Result<void> Watcher::start(std::span<const std::filesystem::path> files, OnEvent on_event) {
  events_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!events_) return fail_system(errno, "inotify", "start");
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!stop_) return fail_system(errno, "eventfd", "create");
  count_ = files.size();
  Result<void> all;
  for (std::size_t position = 0; position < files.size(); ++position) {
    if (auto watched = watch(files[position], position); !watched && all) all = watched;
  }
  if (!watched_.empty()) thread_ = std::thread([this, on_event = std::move(on_event)] { serve(on_event); });
  return all;
}

Result<void> Watcher::watch(const std::filesystem::path& file, std::size_t position) {
  constexpr std::uint32_t kEvents = IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF;
  const int watch = ::inotify_add_watch(events_.get(), file.c_str(), kEvents);
  if (watch < 0) return fail_system(errno, file.string(), "watch for changes");
  watched_.emplace(Watch(watch, ""), position);
  watch_name(file, position);
  // Where its links end, too: that is where a hub's cache would put another one.
  std::error_code failed;
  const auto real = std::filesystem::canonical(file, failed);
  if (!failed && real != file) watch_name(real, position);
  return {};
}

void Watcher::watch_name(const std::filesystem::path& file, std::size_t position) {
  constexpr std::uint32_t kEvents = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR;
  // A directory that may not be read: then the file's own watch must do.
  const int watch = ::inotify_add_watch(events_.get(), file.parent_path().c_str(), kEvents);
  if (watch >= 0) watched_.emplace(Watch(watch, file.filename()), position);
}

void Watcher::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watcher::serve(const OnEvent& on_event) const {
  std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0}, pollfd{events_.get(), POLLIN, 0}};
  for (;;) {
    ::poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) return;
    if (::poll(waits.data(), 1, kBurstMs) > 0) return;
    std::set<std::size_t> changed;
    take_events(changed);
    const std::vector<std::size_t> files(changed.begin(), changed.end());
    if (!files.empty()) on_event(files);
  }
}

void Watcher::take_events(std::set<std::size_t>& files) const {
  alignas(inotify_event) std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(events_.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
      inotify_event event{};
      std::memcpy(&event, buffer.data() + at, sizeof event);
      // Padded with NULs; none at all where it is about the file itself.
      const std::string name = event.len == 0 ? "" : std::string(buffer.data() + at + sizeof event);
      at += sizeof event + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) {
        for (std::size_t position = 0; position < count_; ++position) files.insert(position);
      }
      const auto [first, last] = watched_.equal_range(Watch(event.wd, name));
      for (auto watched = first; watched != last; ++watched) files.insert(watched->second);
    }
  }
}

}  // namespace stfs
