// Starts and stops libfuse's session, the invalidator, the janitor and the watcher in the right order.
#include "fs/mount/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fuse_lowlevel.h>
#include <linux/capability.h>
#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/cancellation.h"
#include "core/remote/remote_workers.h"
#include "fs/base/capabilities.h"
#include "fs/base/log.h"
#include "fs/base/survive.h"
#include "fs/follow/follower.h"
#include "fs/follow/janitor.h"
#include "fs/follow/watcher.h"
#include "fs/kernel/fuse_ops.h"
#include "fs/kernel/invalidator.h"
#include "fs/mount/ending_signals.h"
#include "fs/mount/guard.h"
#include "fs/mount/mount_point.h"
#include "fs/mount/own_mount.h"

namespace stfs {
namespace {

constexpr std::size_t kMostSlowThreads = 512;

// An edit in a large model makes new tables, each of some megabytes, and frees the old ones. glibc would keep
// the freed blocks, in the arena of each thread that has made an edit: hundreds of megabytes.

/// Makes glibc map large blocks separately: the kernel gets the pages back when a block is freed.
void give_large_blocks_back() {
#ifdef __GLIBC__
  constexpr int kLeastBytes = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kLeastBytes);
#endif
}

/// Gives the free pages of smaller blocks back. This takes some milliseconds for each 100 MB.
void give_free_pages_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void log_line_of_libfuse(fuse_log_level level, const char* format, va_list arguments) {
  char line[1024];
  std::vsnprintf(line, sizeof line, format, arguments);
  std::string text(line);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return;
  const bool is_problem = level <= FUSE_LOG_WARNING;
  log::write(is_problem ? log::Level::Warning : log::Level::Info, text);
}

int serve_requests(fuse_session* session, unsigned threads) {
#ifdef STFS_HAVE_FUSE_LOOP_CFG
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, threads);
  fuse_loop_cfg_set_idle_threads(config, threads);
  const int ended = fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  return ended;
#else
  fuse_loop_config config{};
  config.max_idle_threads = threads;
  return fuse_session_loop_mt(session, &config);
#endif
}

/// Changes the entries of the root once earlier listings cannot add entries to the kernel's caches any more.
/// If a program holds the root's lock, the change is made without waiting longer, and the entries are
/// forgotten once the root is free.
void change_root(Mount& mount, const std::function<void()>& change) {
  mount.invalidator->wait_for_listings(kRootIno, [&mount] { mount.links_listed_root = false; });
  mount.links_listed_root = false;
  change();
}

Result<void> decide_passthrough(Mount& mount, const Options& options) {
  if (!options.wants_passthrough) return {};
  if (!mount.mount_root.is_read_only()) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "passthrough: needs a read-only mount (-o ro,passthrough): the kernel would show incomplete "
                "commits");
  }
  const auto possible = Passthrough::check_possible();
  mount.wants_passthrough = possible.has_value();
  if (!possible) {
    log::warning("passthrough: {}: this program serves the reads of archive.safetensors",
                 possible.error().message);
  }
  return {};
}

using LibfuseSession = std::unique_ptr<fuse_session, decltype(&fuse_session_destroy)>;

LibfuseSession new_session(std::vector<std::string> words, Mount& mount) {
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  fuse_session* const made =
      fuse_session_new(&arguments, &fuse_operations(), sizeof(fuse_lowlevel_ops), &mount);
  fuse_opt_free_args(&arguments);
  return {made, fuse_session_destroy};
}

/// Closes the session's descriptor of /dev/fuse, and gives its number to /dev/null.
void close_device(fuse_session* session) {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup3(nothing.get(), fuse_session_fd(session), O_CLOEXEC);
}

/// Mounts on the directory that is held open, even if its path leads elsewhere now. An ordinary user's
/// process can't do this: fusermount3 mounts by the path, on a directory of that user. OwnMount::find()
/// checks where it has mounted.
/// @param mounting  a session that serves nothing. libfuse's session unmounts by the path, so another session
///                  serves.
/// @return the descriptor of the connection
Result<UniqueFd> mount_on(const MountPoint& point, fuse_session* mounting) {
  const std::string place = may_administer() ? path_of_descriptor(point.directory) : point.path.string();
  if (fuse_session_mount(mounting, place.c_str()) != 0) {
    return fail(
        ErrorCode::System, EPERM,
        fmt::format(
            "{}: can't be mounted; the reason is above. An ordinary user needs fusermount3 (package "
            "fuse3), access to /dev/fuse and a mount point that belongs to the user; allow_other needs "
            "user_allow_other in /etc/fuse.conf",
            point.path.string()));
  }
  // TSan knows dup(2), and learns from it that a reply comes before the next request. TSan does not know
  // F_DUPFD.
  UniqueFd connection(::dup(fuse_session_fd(mounting)));
  if (!connection || ::fcntl(connection.get(), F_SETFD, FD_CLOEXEC) != 0)
    return fail_system(errno, "/dev/fuse", "keep open");
  close_device(mounting);
  return connection;
}

}  // namespace

struct Session::Parts {
  Parts(MountRoot& mount_root, std::filesystem::path from, const Options& opts)
      : mount{.mount_root = mount_root}, source(std::move(from)), options(opts) {}

  Mount mount;
  const std::filesystem::path source;
  const Options& options;
  LibfuseSession session{nullptr, fuse_session_destroy};
  std::optional<OwnMount> own;

  /// Nothing if the connection has ended. In this case a user has unmounted or aborted it, and another mount
  /// may have the numbers of this mount.
  [[nodiscard]] const OwnMount* connected() const {
    struct pollfd device = {.fd = fuse_session_fd(session.get()), .events = 0, .revents = 0};
    const bool has_ended = ::poll(&device, 1, 0) == 1 && (device.revents & POLLERR) != 0;
    return has_ended || !own ? nullptr : &*own;
  }
};

/// Unmounts while a request still runs. The request is a long commit, or another user holds a file of the
/// source in the kernel for as long as that user wants. No thread takes new requests any more, so a program
/// that used the mount would wait. The request ends as if nothing had happened: the connection stays.
void Session::leave_mount_point(const Parts& parts) {
  const OwnMount* const connected = parts.connected();
  if (connected == nullptr || !connected->is_mounted()) return;
  log::warning("{}: unmounted before its last requests have ended: this process ends when they have",
               parts.options.mount_point.string());
  // The unmount may wait for pages that no thread takes, until the end closes the device. So nothing waits
  // for this thread.
  try {
    std::thread([mount = OwnMount(connected->numbers())] {
      const RaisedCapability may_unmount(CAP_SYS_ADMIN);
      survive("unmount", [&mount] { mount.unmount(); });
    }).detach();
  } catch (const std::exception&) {  // the mount stays until the requests have ended
  }
}

Session::Session(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Session>> Session::mount(MountRoot& mount_root, const std::filesystem::path& source,
                                                const MountPoint& point, const Options& options) {
  std::unique_ptr<Session> session(new Session(std::make_unique<Parts>(mount_root, source, options)));
  Parts& parts = *session->parts_;
  parts.mount.refuses_modes = options.refuses_modes;
  parts.mount.reads_may_wait = parts.mount.mount_root.reads_from_web();
  RETURN_IF_ERROR(decide_passthrough(parts.mount, options));
  fuse_set_log_func(log_line_of_libfuse);
  const auto words = session_arguments(options, source, mount_root.is_read_only(), may_administer());
  // Never destroyed: libfuse frees the path of a mount only when it unmounts by that path.
  static fuse_session* const mounting = new_session(words, parts.mount).release();
  parts.session = new_session(words, parts.mount);
  if (mounting == nullptr || !parts.session)
    return fail(ErrorCode::System, EINVAL, "libfuse refuses the options; the reason is above");
  auto connection = mount_on(point, mounting);
  RETURN_IF_ERROR(connection);
  fuse_session_mount(parts.session.get(), fmt::format("/dev/fd/{}", connection->release()).c_str());
  auto found = OwnMount::find(point, options.kernel_type());
  RETURN_IF_ERROR(found);
  parts.own.emplace(std::move(*found));
  return session;
}

Session::~Session() {
  const OwnMount* const mounted = parts_->own ? parts_->connected() : nullptr;
  if (mounted == nullptr) return;
  close_device(parts_->session.get());
  mounted->unmount();
}

Result<void> Session::go_to_background() {
  settle_remote_jobs();
  if (fuse_daemonize(0) != 0) return fail(ErrorCode::System, EAGAIN, "can't go to the background");
  log::to_syslog();
  return {};
}

Result<void> Session::serve() {
  Parts& parts = *parts_;
  const Guard guard(*parts.own, parts.options);  // until the connection has ended
  const bool backs_files = parts.mount.wants_passthrough;
  if (auto dropped = drop_capabilities(backs_files ? AdminRight::Effective : AdminRight::InReserve); !dropped)
    log::warning("{}; this program keeps rights that it does not need", dropped.error().message);
  MountRoot& mount_root = parts.mount.mount_root;
  auto kept_invalidator = std::make_unique<Invalidator>(
      parts.session.get(),
      [&mount_root](const Stale& stale, const Invalidator::Visit& visit) {
        if (const MountRoot::Pin model = mount_root.model_of(stale.first)) model->visit_cached(stale, visit);
      },
      [&mount_root](Ino ino) { return mount_root.directory_looked_up(ino); },
      [&mount_root](Ino directory) { return mount_root.label_of(directory, {}); });
  Invalidator& invalidator = *kept_invalidator;
  // Together at most half of the session's threads wait (slow_requests.h).
  const unsigned for_names = parts.options.threads / 8;
  SlowRequests slow(parts.options.threads / 2 - for_names, kMostSlowThreads);
  SlowRequests names(for_names, kMostSlowThreads);
  SlowRequests checksums(0, 2 * std::max(1U, std::thread::hardware_concurrency()));
  parts.mount.invalidator = &invalidator;
  parts.mount.slow = &slow;
  parts.mount.names = &names;
  parts.mount.checksums = &checksums;
  parts.mount.session = parts.session.get();
  parts.mount.on_first_open = [device = parts.own->numbers().device] { raise_readahead(device); };
  invalidator.start();
  give_large_blocks_back();
  Janitor janitor({.tidy = [&mount_root] { mount_root.tidy(); },
                   .rest =
                       [&mount_root] {
                         mount_root.close_gaps();
                         give_free_pages_back();
                       }});
  mount_root.connect_to(
      {.forget = [&invalidator](Stale stale) { invalidator.forget(stale); },
       .forget_outdated =
           [&invalidator](const Outdated& outdated) {
             for (const Stale& stale : outdated.stale) invalidator.forget(stale);
             if (!outdated.entries.empty()) invalidator.forget_entries(outdated.entries);
           },
       .note_commit = [&janitor] { janitor.note_commit(); },
       .change_root = [&parts](const std::function<void()>& change) { change_root(parts.mount, change); }});
  janitor.start();
  Follower follower(parts.mount);  // outlives the watcher's thread
  Watcher watcher;
  if (auto started = watcher.start([&] { return follower.files(); },
                                   [&](auto changed) { return follower.look(changed); },
                                   [&] { invalidator.forget(mount_root.check_permissions()); });
      !started) {
    log::warning("{}; changes by other programs show at the next commit only", started.error().message);
  }
  log::info("{}: mounted on {}{}", parts.source.string(), parts.options.mount_point.string(),
            mount_root.is_read_only() ? ", read-only" : "");

  EndingSignals signals;
  signals.start({.end =
                     [&parts] {
                       Cancellation::note_end();
                       fuse_session_exit(parts.session.get());
                     },
                 .be_late = [&parts] { survive("end", [&parts] { leave_mount_point(parts); }); }});
  const int ended = serve_requests(parts.session.get(), parts.options.threads);
  signals.let_be();
  Cancellation::note_end();
  // libfuse's loop clears this flag at its end, but running and waiting requests still check it.
  fuse_session_exit(parts.session.get());
  checksums.stop();
  slow.stop();
  names.stop();

  const RaisedCapability may_unmount(CAP_SYS_ADMIN);
  // The kernel may be waiting for a page or a listing that no thread serves any more. Then the connection
  // must be aborted before the invalidator's threads can end, and these threads must end before the
  // descriptor is closed. The watcher may be waiting for one of these threads, so it stops later.
  constexpr std::chrono::seconds kPatience{1};
  mount_root.give_up_opening();
  const bool is_mounted = parts.own->is_mounted();
  const OwnMount* const connected = parts.connected();
  bool has_finished = invalidator.finish_within(kPatience);
  if (!has_finished && connected != nullptr) {
    connected->abort();
    has_finished = invalidator.finish_within(kPatience);
  }
  if (!has_finished) {
    // A program holds a directory's lock, and no abort releases this lock. The process ends when the program
    // releases it. Everything else ends now.
    log::warning("{}: a program holds a directory of the mount: this process ends when it lets go",
                 parts.options.mount_point.string());
    invalidator.give_up();
    static_cast<void>(kept_invalidator.release());
  }
  watcher.stop();
  signals.stop();
  close_device(parts.session.get());  // the last descriptor of the connection
  if (connected != nullptr) connected->unmount();
  if (!has_finished) static_cast<void>(parts.session.release());
  parts.own.reset();
  janitor.stop();
  mount_root.end();
  log::info("{}: unmounted from {}", parts.source.string(), parts.options.mount_point.string());
  // ECONNABORTED means that a request was waiting when the connection ended. If no request was waiting,
  // libfuse returns ENODEV.
  if (ended == -ECONNABORTED && !is_mounted) return {};
  if (ended < 0) return fail_system(-ended, parts.options.mount_point.string(), "serve");
  return {};
}

}  // namespace stfs
