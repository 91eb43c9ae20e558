// stfs pull: brings a model up to the version that training has published, once or for ever.
#include "tools/sync/pull.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/parallel.h"
#include "tools/cli/change_options.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/pull_status.h"
#include "tools/cli/verb.h"
#include "tools/sync/publication_watch.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

extern char** environ;

namespace stfs::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kPullExamples =
    "PUBLISHED holds the versions weight_v000000, weight_v000001 and so on (WEIGHT SYNC in stfs-pull(1)). "
    "pull\n"
    "applies all versions that MODEL lacks, in order. Each is applied whole or not at all, also if the host "
    "loses\n"
    "power. A MODEL that does not exist is made from the newest full version. Versions that are not whole "
    "yet "
    "are\n"
    "left for later.\n"
    "\n"
    "Examples:\n"
    "  stfs pull checkpoint published                              up to the newest version\n"
    "  stfs pull --to 42 checkpoint published                      up to version 42\n"
    "  stfs pull --follow --exec ./reload checkpoint published     for ever; ./reload tells the engine\n"
    "  stfs pull --status checkpoint published                     what checkpoint lacks; changes nothing";

struct PullRequest {
  std::string model;
  std::string published;
  std::string to;
  std::string hook;
  ChangeOptions options;
  std::uint64_t threads = 0;
  std::uint64_t interval_s = 1;
  bool follows = false;
  bool is_status = false;
  bool json = false;
};

std::string_view name_of(sync::PullEvent::Kind kind) {
  switch (kind) {
    case sync::PullEvent::Kind::Applied: return "applied";
    case sync::PullEvent::Kind::Seeded: return "seeded";
    case sync::PullEvent::Kind::Unfinished: return "unfinished";
    case sync::PullEvent::Kind::Withdrawn: return "withdrawn";
  }
  return "unknown";
}

bool is_change(const sync::PullEvent& event) {
  return event.kind == sync::PullEvent::Kind::Applied || event.kind == sync::PullEvent::Kind::Seeded;
}

Json event_json(const sync::PullEvent& event) {
  Json json = {{"event", name_of(event.kind)}};
  if (!event.version.empty()) json["version"] = event.version;
  if (event.base_version) json["base_version"] = *event.base_version;
  if (event.kind == sync::PullEvent::Kind::Applied) {
    json["changed_tensors"] = event.outcome.changed_tensors;
    json["changed_bytes"] = event.outcome.changed_bytes;
    json["done_tensors"] = event.outcome.done_tensors;
  }
  if (is_change(event)) json["milliseconds"] = event.took.count();
  if (!event.why.empty()) json["why"] = event.why;
  return json;
}

/// Runs one pull request, and prints its events.
class PullVerb {
 public:
  PullVerb(const PullRequest& request, Streams& streams) : request_(request), streams_(streams) {}

  int run() {
    if (!request_.to.empty()) {
      const auto version = sync::parse_version(request_.to);
      if (!version) {
        report_failure(streams_,
                       fmt::format("--to: \"{}\" is no version: expected digits", printable(request_.to)));
        return kWrongUsage;
      }
      target_ = version->number;
    }
    const InterruptGuard guard;
    const int code = request_.follows ? follow() : once();
    streams_.out.flush();
    return streams_.out ? code : kFailed;
  }

 private:
  int once() {
    const auto deadline = Clock::now() + std::chrono::seconds(request_.options.wait_s);
    sync::PublicationWatch watch(request_.published);
    for (;;) {
      auto version = pull();
      if (!version && sync::is_unfinished(version.error()) && Clock::now() < deadline && !interrupted()) {
        watch.wait(interval());
        continue;
      }
      if (!version) return report_failure(streams_, version.error().message);
      print_end(*version);
      return kDone;
    }
  }

  int follow() {
    sync::PublicationWatch watch(request_.published);
    Clock::time_point works_until = Clock::now();
    while (!interrupted()) {
      auto version = pull();
      if (version && target_ && *version && (*version)->number == *target_) return kDone;
      if (!version && !may_pass(version.error(), works_until)) {
        if (request_.json) print_line({{"event", "failed"}, {"why", version.error().message}});
        return report_failure(streams_, version.error().message);
      }
      const bool has_worked = version || sync::is_unfinished(version.error());
      if (has_worked) works_until = Clock::now();
      if (has_worked && !version) {
        const std::string& why = version.error().message;
        static_cast<void>(take({.kind = sync::PullEvent::Kind::Unfinished, .version = {}, .why = why}));
      }
      if (!interrupted() && streams_.out) watch.wait(interval());
      if (!streams_.out) return kFailed;
    }
    return kDone;
  }

  /// Returns true if the pull is tried again after this time without success: the bytes of a version may
  /// appear later than its names, and locks are released.
  bool may_pass(const Error& error, Clock::time_point works_until) const {
    if (interrupted() || has_failed_hook_) return false;
    if (sync::is_unfinished(error)) return true;
    if (error.code != ErrorCode::InvalidArgument && error.code != ErrorCode::Busy && !says_gone(error))
      return false;
    return Clock::now() - works_until < std::chrono::seconds(request_.options.wait_s);
  }

  [[nodiscard]] std::chrono::milliseconds interval() const {
    return std::chrono::seconds(request_.interval_s);
  }

  Result<std::optional<sync::VersionNumber>> pull() {
    sync::PullOptions options;
    options.apply.commit = commit_options_of(request_.options);
    options.apply.threads = static_cast<unsigned>(request_.threads);
    options.target = target_;
    options.on_open = [this](const Model& model) { report_recovered(streams_, model); };
    options.on_event = [this](const sync::PullEvent& event) { return take(event); };
    Work work([this](std::uint64_t done_bytes, std::uint64_t total_bytes) {
      if (total_bytes == 0) return !interrupted();  // the pull waits for the lock
      if (done_bytes == 0 || !progress_) progress_.emplace(streams_, total_bytes);
      progress_->show(done_bytes);
      return !interrupted();
    });
    options.apply.work = &work;
    auto version = sync::pull(request_.model, request_.published, options);
    progress_.reset();
    return version;
  }

  Result<void> take(const sync::PullEvent& event) {
    progress_.reset();
    const bool is_news = is_change(event) || event.why != last_why_;
    last_why_ = event.why;
    if (request_.json) {
      if (request_.follows && is_news) print_line(event_json(event));
      if (!request_.follows) events_.push_back(event_json(event));
    } else if (is_news) {
      print_text(event);
    }
    if (!is_change(event) || request_.hook.empty()) return {};
    return run_hook(event.version);
  }

  void print_line(Json event) {
    Json line = json_document();
    line.update(event);
    streams_.out << json_line(line) << '\n';
    streams_.out.flush();
  }

  void print_text(const sync::PullEvent& event) {
    const std::string took = fmt::format("{:.1f} s", std::chrono::duration<double>(event.took).count());
    switch (event.kind) {
      case sync::PullEvent::Kind::Applied:
        streams_.out << fmt::format("version {}: changed {} of {}, {}, in {}\n", event.version,
                                    counted(event.outcome.changed_tensors, "tensor"),
                                    printable(request_.model), human_size(event.outcome.changed_bytes), took);
        break;
      case sync::PullEvent::Kind::Seeded:
        streams_.out << fmt::format("version {}: copied all files to {}, in {}\n", event.version,
                                    printable(request_.model), took);
        break;
      case sync::PullEvent::Kind::Unfinished:
      case sync::PullEvent::Kind::Withdrawn: report_failure(streams_, event.why); break;
    }
    streams_.out.flush();
  }

  void print_end(const std::optional<sync::VersionNumber>& version) {
    if (request_.json) {
      Json document = json_document();
      document["path"] = json_path(request_.model);
      document["version"] = version ? Json(version->text) : Json(nullptr);
      document["events"] = events_;
      write_json(document, streams_.out);
      return;
    }
    streams_.out << (version ? fmt::format("{} has version {}\n", printable(request_.model), version->text)
                             : fmt::format("{}: nothing is published yet\n", printable(request_.published)));
  }

  /// Runs the hook and waits for it.
  Result<void> run_hook(const std::string& version) {
    const std::string version_variable = "STFS_VERSION=" + version;
    const std::string model_variable = "STFS_MODEL=" + request_.model;
    std::vector<char*> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
    variables.push_back(const_cast<char*>(version_variable.c_str()));
    variables.push_back(const_cast<char*>(model_variable.c_str()));
    variables.push_back(nullptr);
    const std::array<const char*, 4> command = {"sh", "-c", request_.hook.c_str(), nullptr};
    pid_t child = 0;
    const int failed = ::posix_spawn(&child, "/bin/sh", nullptr, nullptr,
                                     const_cast<char* const*>(command.data()), variables.data());
    int status = 0;
    if (failed == 0) {
      while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
      }
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    }
    has_failed_hook_ = true;
    const std::string why = failed != 0         ? "could not be started"
                            : WIFEXITED(status) ? fmt::format("ended with status {}", WEXITSTATUS(status))
                                                : fmt::format("was ended by signal {}", WTERMSIG(status));
    return fail(ErrorCode::System, failed != 0 ? failed : ECHILD,
                fmt::format("--exec: the command for version {} {}; {} has this version", version, why,
                            request_.model));
  }

  const PullRequest& request_;
  Streams& streams_;
  std::optional<std::uint64_t> target_;
  Json events_ = Json::array();
  std::string last_why_;
  bool has_failed_hook_ = false;
  std::optional<Progress> progress_;  // of the present step
};

}  // namespace

int pull(const Arguments& arguments, Streams& streams) {
  PullRequest request;
  CommandLine line("pull", "Apply the versions of a weight sync that a model lacks.", kPullExamples);
  line.usage("MODEL PUBLISHED");
  line.usage("--status [--json] MODEL PUBLISHED");
  line.positional_file(request.model, "MODEL",
                       "Archive, index, or directory of the model. A directory is made.");
  line.positional_file(request.published, "PUBLISHED", "Directory of the published versions.");
  line.text(request.to, "--to", "N", "Pull up to version N. Default: the newest version that is whole.");
  line.flag(request.follows, "--follow", "Do not end: wait for the next version.");
  line.number(request.interval_s, "--interval", "SECONDS",
              "With --follow: look again after SECONDS, for what other hosts publish. Default: 1.", 1, 3600);
  line.text(request.hook, "--exec", "COMMAND",
            "Run COMMAND after each version. It gets STFS_VERSION, STFS_MODEL. A failure ends the pull.");
  line.flag(request.is_status, "--status",
            "Print which version MODEL has and which it lacks. Change nothing, disturb no receiver.")
      .excludes("--to")
      .excludes("--follow")
      .excludes("--exec");
  line.number(request.threads, "--threads", "N",
              "Threads that apply a version. Default: one for each processor.", 0, kMostWorkers);
  add_change_options(line, request.options);
  line.flag(request.json, "--json", "Print a JSON object; with --follow one for each event, on a line.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (request.is_status) return print_pull_status(request.model, request.published, request.json, streams);
  return PullVerb(request, streams).run();
}

}  // namespace stfs::tools
