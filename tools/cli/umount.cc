// stfs umount: unmounts, and ends when the daemon has ended and all changes are on stable storage.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <optional>
#include <ostream>
#include <system_error>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/shell_word.h"
#include "core/base/unique_fd.h"
#include "core/model/delta.h"
#include "core/storage/lock_holder.h"
#include "core/storage/trusted_links.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/verb.h"
#include "tools/target/daemons.h"
#include "tools/target/mount_users.h"
#include "tools/target/question.h"
#include "tools/target/served_mounts.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"

extern char** environ;

namespace stfs::tools {
namespace {

constexpr const char* kUmountExamples =
    "Unmounts, waits until the daemon has ended, and syncs the file systems of the source and of the deltas "
    "of\n"
    "a writable mount. So after this command no change is in memory only. Root unmounts with umount(2), "
    "another\n"
    "user with fusermount3. If a program uses the mount, the command names the program, and the mount "
    "stays.\n"
    "\n"
    "Examples:\n"
    "  stfs umount /mnt/model\n"
    "  stfs umount --json /mnt/model | jq .mounts";

/// A file that was closed just now may still keep the mount busy.
constexpr int kBusyTries = 20;
constexpr std::chrono::seconds kBusyPatience{3};
constexpr struct timespec kBusyPause = {.tv_sec = 0, .tv_nsec = 50'000'000};

struct Unmounted {
  std::string mount_point;
  std::string source;
  std::vector<pid_t> users{};  // that keep the mount busy
  std::optional<std::string> failure{};
};

/// @return the errno; EIO if fusermount3 failed.
int unmount_as_user(const std::string& path, std::string& why) {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno;
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  posix_spawn_file_actions_t files{};
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, nothing.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, to.get(), STDERR_FILENO);
  const std::array<const char*, 5> words = {"fusermount3", "-u", "--", path.c_str(), nullptr};
  pid_t child = -1;
  const int failed =
      ::posix_spawnp(&child, words[0], &files, nullptr, const_cast<char* const*>(words.data()), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) {
    why = "fusermount3: " + std::generic_category().message(failed);
    return failed;
  }
  to = UniqueFd();
  std::array<char, 1024> said{};
  ssize_t size_bytes = 0;
  why.clear();
  while ((size_bytes = ::read(from.get(), said.data(), said.size())) > 0)
    why.append(said.data(), static_cast<std::size_t>(size_bytes));
  while (!why.empty() && why.back() == '\n') why.pop_back();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : EIO;
}

bool is_root_of(const MountEntry& mount, int above, const std::string& name) {
  struct statx found {};
  // A mount that does not serve root refuses all questions but this one, which asks for nothing. The kernel
  // adds the id.
  if (::statx(above, name.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, 0, &found) !=
      0)
    return false;
  const bool has_id = (found.stx_mask & STATX_MNT_ID) != 0;  // Linux 5.8 or newer
  return has_id ? std::to_string(found.stx_mnt_id) == mount.id
                : fmt::format("{}:{}", found.stx_dev_major, found.stx_dev_minor) == mount.device;
}

/// Another user may exchange a directory above the mount point, so the one above it is opened once. The
/// kernel renames no directory that is a mount point. An open mount point would keep the mount busy.
int unmount_as_root(const MountEntry& mount) {
  const auto above = follow_to_directory(mount.path.parent_path());
  if (!above) return above.error().errno_value;
  const std::string name = mount.path.filename().string();
  if (!is_root_of(mount, above->get(), name)) return ESTALE;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", above->get(), name);
  return ::umount2(path.c_str(), UMOUNT_NOFOLLOW) == 0 ? 0 : errno;
}

int unmount_once(const MountEntry& mount, std::string& why) {
  if (::geteuid() != 0) return unmount_as_user(mount.path.string(), why);
  const int failed = unmount_as_root(mount);
  if (failed == 0) return 0;
  why = failed == ESTALE ? "a directory above it was exchanged: `stfs mounts` shows where it is now"
                         : std::generic_category().message(failed);
  // Root of a user namespace may lack the right, but may be the user of the mount.
  return failed == EPERM ? unmount_as_user(mount.path.string(), why) : failed;
}

bool is_mounted(const MountEntry& mount) {
  return std::ranges::any_of(stfs::mounts(), [&](const MountEntry& entry) {
    return entry.id == mount.id && entry.device == mount.device;
  });
}

/// Returns the letter of proc_pid_stat(5); ' ' if there is no such process.
char state_of(pid_t process) {
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", process)), line);
  const std::size_t name_end = line.rfind(") ");
  return name_end == line.npos ? ' ' : line[name_end + 2];
}

std::string stopped_text(pid_t daemon) {
  return fmt::format("{} serves it and is stopped: continue it with `kill -CONT {}`", holder_text(daemon),
                     daemon);
}

/// Waits until the process has ended. @return why not; nothing if it has.
std::optional<std::string> wait_for(pid_t daemon, const UniqueFd& process, Streams& streams) {
  constexpr int kFirstMs = 1000;
  constexpr int kNextMs = 200;
  bool is_told = false;
  for (struct pollfd event = {.fd = process.get(), .events = POLLIN, .revents = 0};;) {
    const int ready = ::poll(&event, 1, is_told ? kNextMs : kFirstMs);
    if (ready > 0) return std::nullopt;
    if (interrupted()) return fmt::format("is unmounted, but {} has not ended yet", holder_text(daemon));
    if (state_of(daemon) == 'T') return "is unmounted, but " + stopped_text(daemon);
    if (!is_told && streams.err_is_terminal)
      streams.err << fmt::format("stfs umount: waiting for {}\n", holder_text(daemon)) << std::flush;
    is_told = true;
  }
}

/// What is known of a mount before it goes.
struct Before {
  bool is_dead = false;  // the daemon has ended
  std::vector<std::filesystem::path> files{};
};

/// Asks the mount. A mount that does not answer tells only its source.
Before look_at(const MountEntry& mount) {
  Question question([&]() -> std::string {
    struct statfs store {};
    if (::statfs(mount.path.c_str(), &store) != 0 && errno == ENOTCONN) return "dead";
    return "here" + read_mount_attribute(mount.path, kDeltaAttribute).value_or("");
  });
  const std::string answer = question.answer_by(deadline_in(kAnswerPatience)).value_or("");
  Before before{.is_dead = answer == "dead"};
  if (answer.size() > 4 && !before.is_dead) before.files = split_deltas(answer.substr(4));
  before.files.emplace_back(mount.source);
  return before;
}

/// Opens the file, or its directory if another user decides what the name leads to now.
Result<UniqueFd> open_to_sync(const std::filesystem::path& path) {
  const auto found = follow_trusted_links(AT_FDCWD, path, OtherMounts::NotForeign);
  if (found) {
    UniqueFd file = found->open(O_RDONLY | O_NONBLOCK);
    if (file) return file;
  } else if (found.error().errno_value == ENOENT) {
    return tl::unexpected(found.error());
  }
  const auto directory = follow_to_directory(directory_of(path));
  RETURN_IF_ERROR(directory);
  UniqueFd opened(::openat(directory->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened ? Result<UniqueFd>(std::move(opened)) : fail_system(errno, path.string(), "open");
}

/// Syncs the file systems of the files. Root opens no file that another user's mount names.
std::optional<std::string> sync_files(const std::vector<std::filesystem::path>& files,
                                      const MountEntry& mount) {
  if (mount.user() != 0U && mount.user() != ::geteuid()) {
    ::sync();
    return std::nullopt;
  }
  for (const std::filesystem::path& path : files) {
    const auto file = open_to_sync(path);
    if (!file && file.error().errno_value == ENOENT) continue;  // it was deleted: nothing of it is to be kept
    if (!file || ::syncfs(file->get()) != 0)
      return fmt::format("is unmounted, but {} could not be synced: {}", path.string(),
                         file ? std::generic_category().message(errno) : file.error().message);
  }
  return std::nullopt;
}

std::string busy_text(const std::vector<pid_t>& users) {
  std::string text = "is in use by ";
  for (const pid_t user : users) text += (user == users.front() ? "" : ", ") + holder_text(user);
  if (users.empty()) text += holder_text(std::nullopt) + ", which only root can see";
  return text;
}

/// Waits for the daemon, and syncs. @return why not.
std::optional<std::string> complete_unmount(const MountEntry& mount, const Before& before,
                                            std::optional<pid_t> daemon, const UniqueFd& process,
                                            Streams& streams) {
  if (process) {
    if (auto left = wait_for(*daemon, process, streams)) return left;
  } else if (!before.is_dead && (!daemon || state_of(*daemon) != ' ')) {
    return "is unmounted, but its daemon was not found: it may still have changes in memory";
  }
  if (ServedMount{.entry = mount}.is_read_only()) return std::nullopt;
  return sync_files(before.files, mount);
}

std::optional<std::string> unmount(const MountEntry& mount, Unmounted& done, Streams& streams) {
  const Before before = look_at(mount);  // a mount that answers has its guard, which find_daemon() needs
  const auto daemon = find_daemon(mount);
  const UniqueFd process(daemon ? static_cast<int>(::syscall(SYS_pidfd_open, *daemon, 0)) : -1);
  if (daemon && state_of(*daemon) == 'T') return stopped_text(*daemon);
  std::string why;
  int failed = unmount_once(mount, why);
  const auto is_busy = [&] { return failed == EBUSY || why.find("busy") != why.npos; };
  const Deadline deadline = deadline_in(kBusyPatience);
  const auto may_try_again = [&](int tries) {
    return tries < kBusyTries && time_left(deadline) != std::chrono::milliseconds::zero();
  };
  for (int tries = 1; failed != 0 && is_busy() && may_try_again(tries); ++tries) {
    // A program that looks at all mounts, such as `stfs mounts`, uses each of them for a moment.
    const std::vector<pid_t> before_pause = std::exchange(done.users, users_of(mount));
    const auto has_stayed = [&](pid_t user) {
      return std::ranges::find(before_pause, user) != before_pause.end();
    };
    if (std::ranges::any_of(done.users, has_stayed)) break;
    ::nanosleep(&kBusyPause, nullptr);
    failed = unmount_once(mount, why);
  }
  if (failed != 0) return is_busy() ? busy_text(done.users) : why;
  done.users.clear();
  // fusermount3 looks the path up again, and root's own unmount does not. A new mount may already have the
  // numbers of the old one, so this check is only for other users.
  if (::geteuid() != 0 && is_mounted(mount))
    return "a directory above it was exchanged, and another mount of yours was unmounted: `stfs mounts` "
           "shows both";
  return complete_unmount(mount, before, daemon, process, streams);
}

Unmounted unmount_named(const std::string& named, Streams& streams) {
  Unmounted done{.mount_point = named, .source = {}};
  const auto mount = served_mount_at(named);
  if (!mount) {
    done.failure = mount.error().message;
    return done;
  }
  done.mount_point = mount->path.string();
  done.source = mount->source;
  if (auto failure = unmount(*mount, done, streams)) done.failure = named + ": " + *failure;
  return done;
}

Json row_of(const Unmounted& done) {
  Json row;
  row["mount_point"] = done.mount_point;
  row["source"] = done.source.empty() ? Json() : Json(done.source);
  row["is_done"] = !done.failure;
  row["failure"] = done.failure ? Json(*done.failure) : Json();
  row["used_by"] = Json::array();
  for (const pid_t user : done.users)
    row["used_by"].push_back({{"process", user}, {"description", holder_text(user)}});
  return row;
}

}  // namespace

int umount(const Arguments& arguments, Streams& streams) {
  std::vector<std::string> names;
  bool json = false;
  CommandLine line("umount", "Unmount, and wait until all changes are on stable storage.", kUmountExamples);
  line.usage("MOUNTPOINT...");
  line.positionals(names, "MOUNTPOINT", "Directories on which safetensorsfs is mounted.");
  line.flag(json, "--json", "Print the result as a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (names.empty()) return report_wrong_usage(streams, "MOUNTPOINT is required");
  const InterruptGuard guard;
  std::vector<Unmounted> all;
  int code = kDone;
  for (const std::string& name : names) {
    all.push_back(unmount_named(name, streams));
    if (all.back().failure) code = report_failure(streams, *all.back().failure);
    if (interrupted()) break;
  }
  if (json) {
    JsonStream document(streams.out);
    document.array("mounts", all, [](const Unmounted& done) { return row_of(done); });
    document.end();
  }
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
