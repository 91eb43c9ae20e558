// Starts and stops libfuse's session, the invalidator, the janitor and the watcher in the right order.
#include "fs/mount/session.h"

#include <fmt/format.h>
#include <fuse_lowlevel.h>
#include <linux/capability.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fs/base/capabilities.h"
#include "fs/base/log.h"
#include "fs/follow/follower.h"
#include "fs/follow/janitor.h"
#include "fs/follow/watcher.h"
#include "fs/kernel/fuse_ops.h"
#include "fs/kernel/invalidator.h"
#include "fs/mount/ending_signals.h"
#include "fs/mount/guard.h"
#include "fs/mount/mount_point.h"

namespace stfs {
namespace {

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

/// Runs `change` on the invalidator's thread, and returns when it is done. Throws what `change` throws.
void change_root(Mount& mount, const std::function<void()>& change) {
  const auto done = std::make_shared<std::promise<void>>();
  mount.invalidator->run([&mount, &change, done] {
    try {
      mount.links_listed_root = false;
      mount.invalidator->wait_for_listings(kRootIno);
      change();
      done->set_value();
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  });
  done->get_future().get();
}

Result<void> decide_passthrough(Mount& mount, const Options& options) {
  if (!options.wants_passthrough) return {};
  if (!mount.forest.is_read_only()) {
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

}  // namespace

struct Session::Parts {
  Parts(Forest& forest, std::filesystem::path from, const Options& opts)
      : mount{.forest = forest}, source(std::move(from)), options(opts) {}

  Mount mount;
  const std::filesystem::path source;
  const Options& options;
  fuse_session* session = nullptr;
  bool is_mounted = false;
};

Session::Session(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Session>> Session::mount(Forest& forest, const std::filesystem::path& source,
                                                const Options& options) {
  std::unique_ptr<Session> session(new Session(std::make_unique<Parts>(forest, source, options)));
  Parts& parts = *session->parts_;
  parts.mount.refuses_modes = options.refuses_modes;
  if (auto decided = decide_passthrough(parts.mount, options); !decided) return pass_on(std::move(decided));
  fuse_set_log_func(log_line_of_libfuse);
  std::vector<std::string> words = session_arguments(options, source, forest.is_read_only());
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  parts.session = fuse_session_new(&arguments, &fuse_operations(), sizeof(fuse_lowlevel_ops), &parts.mount);
  fuse_opt_free_args(&arguments);
  if (parts.session == nullptr) {
    return fail(ErrorCode::System, EINVAL, "libfuse refuses the options; the reason is above");
  }
  if (fuse_session_mount(parts.session, options.mount_point.c_str()) != 0) {
    return fail(
        ErrorCode::System, EPERM,
        fmt::format(
            "{}: can't be mounted; the reason is above. An ordinary user needs fusermount3 (package "
            "fuse3), access to /dev/fuse and a mount point that belongs to the user; allow_other needs "
            "user_allow_other in /etc/fuse.conf",
            options.mount_point.string()));
  }
  parts.is_mounted = true;
  return session;
}

Session::~Session() {
  if (parts_->is_mounted) fuse_session_unmount(parts_->session);
  if (parts_->session != nullptr) fuse_session_destroy(parts_->session);
}

Result<void> Session::go_to_background() {
  if (fuse_daemonize(0) != 0) return fail(ErrorCode::System, EAGAIN, "can't go to the background");
  log::to_syslog();
  return {};
}

Result<void> Session::serve() {
  Parts& parts = *parts_;
  const Guard guard(parts.options);  // until the connection has ended
  const bool backs_files = parts.mount.wants_passthrough;
  if (auto dropped = drop_capabilities(backs_files ? AdminRight::Effective : AdminRight::InReserve); !dropped)
    log::warning("{}; this program keeps rights that it does not need", dropped.error().message);
  Forest& forest = parts.mount.forest;
  Invalidator invalidator(parts.session, [&forest](const Stale& stale, const Invalidator::Visit& visit) {
    if (const Forest::Pin model = forest.model_of(stale.first)) model->visit_cached(stale, visit);
  });
  SlowRequests slow(parts.options.threads);
  parts.mount.invalidator = &invalidator;
  parts.mount.slow = &slow;
  parts.mount.session = parts.session;
  parts.mount.on_first_open = [&parts] {
    raise_readahead(parts.options.mount_point, parts.options.kernel_type());
  };
  invalidator.start();
  Janitor janitor({.tidy = [&forest] { forest.tidy(); }, .rest = [&forest] { forest.close_gaps(); }});
  forest.connect_to(
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
                                   [&](auto changed) { return follower.look(changed); });
      !started) {
    log::warning("{}; changes by other programs show at the next commit only", started.error().message);
  }
  log::info("{}: mounted on {}{}", parts.source.string(), parts.options.mount_point.string(),
            forest.is_read_only() ? ", read-only" : "");

  EndingSignals signals;
  signals.start([&parts] { fuse_session_exit(parts.session); });
  const int ended = serve_requests(parts.session, parts.options.threads);
  signals.stop();
  slow.stop();

  const RaisedCapability may_unmount(CAP_SYS_ADMIN);
  // The kernel may be waiting for a page or a listing that no thread serves any more. Then the connection
  // must be aborted before the invalidator's thread can end, and that thread must end before the descriptor
  // is closed. The watcher may be waiting for the invalidator's thread, so it stops later.
  constexpr std::chrono::seconds kPatience{1};
  forest.give_up_opening();
  if (!invalidator.finish_within(kPatience))
    abort_connection(parts.options.mount_point, parts.options.kernel_type());
  invalidator.stop();
  watcher.stop();
  fuse_session_unmount(parts.session);
  parts.is_mounted = false;
  janitor.stop();
  forest.end();
  log::info("{}: unmounted from {}", parts.source.string(), parts.options.mount_point.string());
  // ECONNABORTED means that a request was waiting when the connection ended; libfuse gives ENODEV if none
  // was.
  const bool is_mounted = mounted_at(parts.options.mount_point).has_value();
  if (ended == -ECONNABORTED && !is_mounted) return {};
  if (ended < 0) return fail_system(-ended, parts.options.mount_point.string(), "serve");
  return {};
}

}  // namespace stfs
