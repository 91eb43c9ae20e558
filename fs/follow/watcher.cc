// Reads events of inotify on a thread.
#include "fs/follow/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/model/model_directory.h"
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
  const auto all_watched = watch_all(files());
  if (!events_) return all_watched;
  thread_ = std::thread(
      [this, files = std::move(files), on_event = std::move(on_event)] { serve(files, on_event); });
  return all_watched;
}

Result<void> Watcher::watch_all(std::span<const std::filesystem::path> files) {
  watched_.clear();
  events_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!events_) return fail_system(errno, "inotify", "start");
  count_ = files.size();
  Result<void> all_watched;
  for (std::size_t position = 0; position < files.size(); ++position) {
    if (auto watched = watch(files[position], position); !watched && all_watched) all_watched = watched;
  }
  return all_watched;
}

Result<void> Watcher::watch(const std::filesystem::path& file, std::size_t position) {
  constexpr std::uint32_t kEvents = IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF;
  const bool has_name = watch_name(file, position);
  if (!file.has_filename())
    return has_name ? Result<void>() : fail_system(EACCES, file.string(), "watch for new files");
  const int watch = ::inotify_add_watch(events_.get(), file.c_str(), kEvents);
  // If the file does not exist, the watch on its name reports when it appears.
  if (watch < 0 && errno == ENOENT && has_name) return {};
  if (watch < 0) return fail_system(errno, file.string(), "watch for changes");
  watched_.emplace(Watch(watch, ""), position);
  // Also watch the directory where its symbolic links end: a hub's cache would replace the file there.
  std::error_code failed;
  const auto real = std::filesystem::canonical(file, failed);
  if (!failed && real != file) watch_name(real, position);
  return {};
}

bool Watcher::watch_name(const std::filesystem::path& file, std::size_t position) {
  const bool is_any = !file.has_filename();
  // A directory has one watch, which gathers the events of all calls.
  const std::uint32_t events = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR |
                               IN_MASK_ADD | (is_any ? IN_CLOSE_WRITE : 0U);
  // This fails if the directory may not be read. Then only the file itself is watched.
  const int watch = ::inotify_add_watch(events_.get(), file.parent_path().c_str(), events);
  if (watch < 0) return false;
  watched_.emplace(Watch(watch, is_any ? kAny : file.filename().string()), position);
  return true;
}

void Watcher::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watcher::serve(const Files& files, const OnEvent& on_event) {
  // The loop checks must_stop() itself: if files are replaced again and again, it never waits for events.
  for (std::set<std::size_t> changed = all(); !must_stop();) {
    const std::vector<std::size_t> positions(changed.begin(), changed.end());
    const Next next = positions.empty() ? Next::Wait : on_event(positions);
    if (next != Next::WatchAnew) {
      if (!wait_for_events(next, changed)) return;
      continue;
    }
    if (auto watched = watch_all(files()); !watched) {
      log::warning("{}; changes by other programs show at the next commit only", watched.error().message);
      if (!events_) return;
    }
    changed = all();
  }
}

bool Watcher::must_stop() const {
  pollfd told = {stop_.get(), POLLIN, 0};
  return ::poll(&told, 1, 0) > 0;
}

bool Watcher::wait_for_events(Next next, std::set<std::size_t>& files) const {
  constexpr int kAgainMs = 1000;
  std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0}, pollfd{events_.get(), POLLIN, 0}};
  const int ready = ::poll(waits.data(), waits.size(), next == Next::LookAgain ? kAgainMs : -1);
  if (waits[0].revents != 0 || (ready > 0 && ::poll(waits.data(), 1, kBurstMs) > 0)) return false;
  files = ready == 0 ? all() : std::set<std::size_t>();
  take_events(files);
  return true;
}

std::set<std::size_t> Watcher::all() const {
  std::set<std::size_t> positions;
  for (std::size_t position = 0; position < count_; ++position) positions.insert(positions.end(), position);
  return positions;
}

void Watcher::take_events(std::set<std::size_t>& files) const {
  alignas(inotify_event) std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(events_.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
      inotify_event event{};
      std::memcpy(&event, buffer.data() + at, sizeof event);
      // The name is padded with NULs. An event about the file itself has none.
      const std::string name = event.len == 0 ? "" : std::string(buffer.data() + at + sizeof event);
      at += sizeof event + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) {
        files = all();
      }
      for (const std::string& concerned :
           {name, std::string(name.ends_with(kArchiveSuffix) ? kAny : "/none")}) {
        const auto [first, last] = watched_.equal_range(Watch(event.wd, concerned));
        for (auto watched = first; watched != last; ++watched) files.insert(watched->second);
      }
    }
  }
}

}  // namespace stfs
