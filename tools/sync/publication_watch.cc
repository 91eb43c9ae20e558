// One inotify descriptor for the directory and the newest versions.
#include "tools/sync/publication_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/storage/foreign_mount.h"
#include "core/storage/trusted_links.h"
#include "tools/sync/publication.h"

namespace stfs::sync {
namespace {

constexpr std::uint32_t kEvents = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_MOVED_FROM;
constexpr std::size_t kWatchedVersions = 4;

}  // namespace

PublicationWatch::PublicationWatch(std::filesystem::path directory)
    : directory_(std::move(directory)), inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  const auto opened = follow_to_directory(directory_);
  if (inotify_ && opened)
    ::inotify_add_watch(inotify_.get(), fmt::format("/proc/self/fd/{}", opened->get()).c_str(), kEvents);
  watch_newest();
}

void PublicationWatch::watch_newest() {
  if (!inotify_) return;
  const auto publication = Publication::look(directory_);
  if (!publication) return;
  const auto& versions = publication->versions();
  for (std::size_t at = versions.size() - std::min(kWatchedVersions, versions.size()); at < versions.size();
       ++at) {
    // Another user's link or mount may have the name: a call by the path would wait for that user's program.
    const auto version = open_entry(publication->path_of(versions[at]), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!version) continue;
    // A directory that is watched already keeps its watch. The watch ends with the directory.
    ::inotify_add_watch(inotify_.get(), fmt::format("/proc/self/fd/{}", version->get()).c_str(), kEvents);
  }
}

void PublicationWatch::wait(std::chrono::milliseconds interval) {
  pollfd waits{.fd = inotify_ ? inotify_.get() : -1, .events = POLLIN, .revents = 0};
  if (::poll(&waits, 1, static_cast<int>(interval.count())) <= 0) return;
  std::array<char, 4096> events;
  while (::read(inotify_.get(), events.data(), events.size()) > 0) {
  }
  watch_newest();
}

}  // namespace stfs::sync
