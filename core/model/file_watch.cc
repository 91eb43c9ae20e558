#include "core/model/file_watch.h"

#include <fmt/format.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "core/model/model_directory.h"
#include "core/storage/trusted_links.h"

namespace stfs {

Result<void> FileWatch::watch(std::span<const std::filesystem::path> files) {
  watched_.clear();
  events_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!events_) return fail_system(errno, "inotify", "start");
  count_ = files.size();
  Result<void> all_watched;
  for (std::size_t position = 0; position < files.size(); ++position) {
    if (auto watched = watch_file(files[position], position); !watched && all_watched) all_watched = watched;
  }
  return all_watched;
}

Result<void> FileWatch::watch_file(const std::filesystem::path& file, std::size_t position) {
  // A writer that dies in a commit may not have written to this file, but its death closes the file.
  constexpr std::uint32_t kEvents = IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF;
  const bool has_name = watch_name(file, position);
  if (!file.has_filename())
    return has_name ? Result<void>() : fail_system(EACCES, file.string(), "watch for new files");
  const auto found = follow_all_links(file);
  // If the file does not exist, the watch on its name reports when it appears.
  if (!found && found.error().errno_value == ENOENT && has_name) return {};
  if (!found) return fail_system(found.error().errno_value, file.string(), "watch for changes");
  const std::string opened = fmt::format("/proc/self/fd/{}", found->fd.get());
  const int watch = ::inotify_add_watch(events_.get(), opened.c_str(), kEvents);
  if (watch < 0) return fail_system(errno, file.string(), "watch for changes");
  watched_.emplace(Watch(watch, ""), position);
  // Also watches the directory where the file's symbolic links end: a hub's cache replaces the file there.
  const auto real = real_path_of(found->fd.get(), file);
  if (real != file) watch_name(real, position);
  return {};
}

bool FileWatch::watch_name(const std::filesystem::path& file, std::size_t position) {
  const bool is_any = !file.has_filename();
  // A directory has one watch, which gathers the events of all calls.
  const std::uint32_t events = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR |
                               IN_MASK_ADD | (is_any ? IN_CLOSE_WRITE : 0U);
  // This fails if the directory may not be read. Then only the file itself is watched.
  const auto found = follow_all_links(file.parent_path() / "");
  if (!found) return false;
  const std::string directory = fmt::format("/proc/self/fd/{}", found->fd.get());
  const int watch = ::inotify_add_watch(events_.get(), directory.c_str(), events);
  if (watch < 0) return false;
  watched_.emplace(Watch(watch, is_any ? kAny : file.filename().string()), position);
  return true;
}

void FileWatch::take_events(std::set<std::size_t>& files) const {
  alignas(inotify_event) std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(events_.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
      inotify_event event{};
      std::memcpy(&event, buffer.data() + at, sizeof event);
      // The name is padded with NULs. An event about the file itself has no name.
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

std::set<std::size_t> FileWatch::all() const {
  std::set<std::size_t> positions;
  for (std::size_t position = 0; position < count_; ++position) positions.insert(positions.end(), position);
  return positions;
}

}  // namespace stfs
