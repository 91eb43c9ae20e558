// Reads /proc/self/mountinfo. Names a directory by its descriptor in /proc/self/fd, for mount(2) and
// umount2(2).
#include "fs/mount/own_mount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>
#include <vector>

extern char** environ;

namespace stfs {
namespace {

// On old kernels a mount can be missing from the list while another one is unmounted.
constexpr int kTries = 10;

void pause_shortly() {
  constexpr struct timespec kPause = {.tv_sec = 0, .tv_nsec = 20'000'000};
  ::nanosleep(&kPause, nullptr);
}

/// The mount's number. Sends no request.
/// @param root  an O_PATH descriptor
std::string number_of(const UniqueFd& root, unsigned which) {
  struct statx found {};
  ::statx(root.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, which, &found);
  return std::to_string(found.stx_mnt_id);
}

std::string lasting_number_of(const UniqueFd& root) {
  constexpr unsigned kUniqueOrOld = 0x4000 | 0x1000;  // STATX_MNT_ID_UNIQUE | STATX_MNT_ID
  return number_of(root, kUniqueOrOld);
}

/// Mounts fusectl without a place in the tree of files. In a container fusectl is often not mounted, but root
/// may mount it this way.
UniqueFd fusectl_of_our_own() {
#ifdef SYS_fsopen
  constexpr unsigned kCloseOnExec = 1;  // FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
  constexpr unsigned kCreate = 6;       // FSCONFIG_CMD_CREATE
  const UniqueFd context(static_cast<int>(::syscall(SYS_fsopen, "fusectl", kCloseOnExec)));
  if (context && ::syscall(SYS_fsconfig, context.get(), kCreate, nullptr, nullptr, 0) == 0)
    return UniqueFd(static_cast<int>(::syscall(SYS_fsmount, context.get(), kCloseOnExec, 0)));
#endif
  return {};
}

/// Calls fusermount3, which checks that this user owns the mount there.
void unmount_by_name(const std::string& path) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::array words = {std::string("fusermount3"), std::string("-u"), std::string("-q"),
                      std::string("-z"),          std::string("--"), path};
  std::array<char*, words.size() + 1> argv{};
  std::ranges::transform(words, argv.begin(), [](std::string& word) { return word.data(); });
  pid_t child = -1;
  const int failed = posix_spawnp(&child, argv[0], nullptr, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) return;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<OwnMount> OwnMount::find(const MountPoint& point, std::string_view type) {
  for (int tries = 0; tries < kTries; ++tries) {
    const std::filesystem::path present = present_path(point.directory);
    for (const MountEntry& entry : mounts()) {
      const bool is_new = std::ranges::find(point.earlier_mounts, entry.id) == point.earlier_mounts.end();
      if (!is_new || entry.type != type || entry.path != present) continue;
      const UniqueFd root(::open(entry.path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      constexpr unsigned kOld = 0x1000;  // STATX_MNT_ID
      if (const std::string found = root ? number_of(root, kOld) : ""; found == entry.id || found == "0")
        return OwnMount({.id = entry.id, .lasting = lasting_number_of(root), .device = entry.device});
    }
    pause_shortly();
  }
  return fail(
      ErrorCode::System, ESTALE,
      fmt::format("{}: somebody exchanged the directory, or unmounted it, while it was mounted on. If a "
                  "dead mount is left, `grep {} /proc/self/mountinfo` shows where. Choose a mount point "
                  "below directories that only you may write",
                  point.path.string(), type));
}

bool OwnMount::is_mounted() const {
  return std::ranges::any_of(mounts(), [this](const MountEntry& entry) {
    return entry.id == numbers_.id && entry.device == numbers_.device;
  });
}

std::optional<OwnMount::Place> OwnMount::place() const {
  for (int tries = 0; tries < kTries; ++tries) {
    const std::vector<MountEntry> all = mounts();
    const auto ours = std::ranges::find_if(all, [this](const MountEntry& entry) {
      return entry.id == numbers_.id && entry.device == numbers_.device;
    });
    if (ours == all.end()) return std::nullopt;
    UniqueFd root(::open(ours->path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (root && lasting_number_of(root) == numbers_.lasting)
      return Place{.root = std::move(root), .path = ours->path};
    pause_shortly();  // a directory above was exchanged after the look
  }
  return std::nullopt;
}

UniqueFd OwnMount::open_abort_file() const {
  const std::string path = numbers_.device.substr(numbers_.device.find(':') + 1) + "/abort";
  UniqueFd file(::open(("/sys/fs/fuse/connections/" + path).c_str(), O_WRONLY | O_CLOEXEC));
  if (file) return file;
  const UniqueFd fusectl = fusectl_of_our_own();
  return UniqueFd(fusectl ? ::openat(fusectl.get(), path.c_str(), O_WRONLY | O_CLOEXEC) : -1);
}

void OwnMount::abort() const {
  const auto held = place();
  if (!held) return;
  // The mount's owner may write to this file. umount2(2) needs root, but also works if fusectl is not
  // mounted. The mount stays because it is held open: programs must get ENOTCONN, and not see the directory
  // below.
  if (const UniqueFd file = open_abort_file()) abort_connection(file.get());
  ::umount2(path_of_descriptor(held->root).c_str(), MNT_FORCE);
}

void OwnMount::unmount() const {
  for (int tries = 0; tries < kTries && is_mounted(); ++tries) {
    std::string path;
    if (const auto held = place()) {
      if (::umount2(path_of_descriptor(held->root).c_str(), MNT_DETACH) == 0) return;
      path = held->path.string();
    }
    if (!path.empty()) unmount_by_name(path);
    pause_shortly();
  }
}

bool abort_connection(int abort_file) {
  return ::write(abort_file, "1", 1) == 1;
}

}  // namespace stfs
