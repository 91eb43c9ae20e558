// stfs serve: keeps tensors in the memory of their devices; other processes map them.
#include <fmt/format.h>

#include <csignal>
#include <optional>
#include <ostream>
#include <utility>

#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/serve_status.h"
#include "tools/cli/upload_request.h"
#include "tools/cli/verb.h"
#include "tools/serve/lease_server.h"
#include "tools/serve/serve_client.h"
#include "tools/serve/serve_loader.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kServeExamples =
    "Uploads the tensors once and keeps them. Other processes of the same user map them through the socket\n"
    "within milliseconds, without a copy, and read-only: stfs.attach(PATH) in Python, stfs_lease_attach()\n"
    "in C.\n"
    "Each connection is a lease. When the archive changes, by stfs apply for example, the server uploads "
    "the\n"
    "tensors that have changed and notifies the holders of leases. The new generation shares the memory of\n"
    "all other tensors with the old one. Memory is freed when no lease needs it.\n"
    "The server stays in the foreground until Ctrl-C or SIGTERM. The mappings of clients outlive it.\n"
    "\n"
    "DEVICE, @FILE, PATTERN, --cast and DTYPE (BF16, F16, F32, F8_E4M3, F8_E5M2 and their FNUZ kinds) are "
    "as\n"
    "with stfs upload. A client that connects before the end of the upload waits for it.\n"
    "\n"
    "Examples:\n"
    "  stfs serve model.safetensors --device cpu --socket /run/user/1000/model.sock\n"
    "  stfs serve model.safetensors.index.json --device cuda:0 --socket model.sock --verify\n"
    "  stfs serve model.safetensors --device @rules.txt --socket model.sock      a device for each tensor\n"
    "  stfs serve model.safetensors --device cpu --select '*.mlp.*' --dtype F16 --socket mlp.sock\n"
    "  stfs serve --status model.sock                                            show generations and "
    "leases\n"
    "  python -c \"import stfs; print(list(stfs.attach('model.sock')))\"";

// The longest time until a signal is noticed if nothing else happens.
constexpr std::chrono::milliseconds kRound{200};

struct ServeRequest : UploadRequest {
  std::string socket;
  std::string status;
  bool is_verified = false;
  bool is_frozen = false;
  bool json = false;
};

std::vector<std::string> absolute_paths(const std::vector<std::string>& sources) {
  std::vector<std::string> paths;
  for (const std::string& source : sources) paths.push_back(json_path(source));
  return paths;
}

/// Ignores SIGPIPE: if the reader of the output ends, the server must still serve its leases.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard() : before_(std::signal(SIGPIPE, SIG_IGN)) {}
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;
  ~BrokenPipeGuard() { std::signal(SIGPIPE, before_); }

 private:
  void (*before_)(int);
};

/// Returns "uploaded", or "3 tensors changed, 1.2 MiB uploaded" for a generation that shares memory.
std::string what_was_uploaded(const serve::Loaded& loaded) {
  const std::uint64_t own_bytes = loaded.model->own_bytes();
  if (own_bytes == loaded.model->size_bytes()) return "uploaded";
  return fmt::format("{} changed, {} uploaded", counted(loaded.changed_tensors, "tensor"),
                     human_size(own_bytes));
}

/// Runs one server and prints its events.
class Service {
 public:
  Service(const ServeRequest& request, serve::ServeSocket socket, upload::PlanRequest plan, Streams& streams)
      : request_(request),
        streams_(streams),
        server_(std::move(socket), {.sources = absolute_paths(request.sources)}),
        loader_(serve::steps_for(std::move(plan), {.verify = request.is_verified}),
                {.sources = absolute_paths(request.sources), .follows = !request.is_frozen}) {}

  /// Runs until a signal comes, or until there is nothing to serve.
  int run() {
    while (!interrupted()) {
      if (const auto served = server_.serve_once(kRound, loader_.descriptor()); !served) {
        return report_failure(streams_, served.error().message);
      }
      while (const auto outcome = loader_.take()) {
        if (*outcome) {
          publish(**outcome);
        } else if (!complain(outcome->error())) {
          return kFailed;
        }
      }
      if (!is_serving_) draw();
    }
    return is_serving_ ? kDone : kFailed;
  }

 private:
  void publish(const serve::Loaded& loaded) {
    server_.publish(loaded.model);
    progress_.reset();
    for (const auto& model : loaded.sources) report_not_shown(streams_, *model);
    const double seconds = std::chrono::duration<double>(loaded.report.duration).count();
    const char* event = is_serving_ ? "generation" : "serving";
    is_serving_ = true;
    if (request_.json) {
      print_event({{"event", event},
                   {"socket", json_path(server_.path())},
                   {"pid", ::getpid()},
                   {"generation", loaded.model->generation()},
                   {"tensors", loaded.model->tensor_count()},
                   {"version", loaded.model->version().empty() ? Json() : Json(loaded.model->version())},
                   {"size_bytes", loaded.model->size_bytes()},
                   {"own_bytes", loaded.model->own_bytes()},
                   {"shared_bytes", loaded.model->size_bytes() - loaded.model->own_bytes()},
                   {"changed_tensors", loaded.changed_tensors},
                   {"overflows", loaded.report.overflows},
                   {"seconds", seconds}});
      return;
    }
    streams_.out << fmt::format("serving {}, {}, on {}: generation {}{}, {} in {:.2f} s\n",
                                counted(loaded.model->tensor_count(), "tensor"),
                                human_size(loaded.model->size_bytes()), printable(server_.path().native()),
                                loaded.model->generation(),
                                loaded.model->version().empty() ? "" : ", version " + loaded.model->version(),
                                what_was_uploaded(loaded), seconds);
    if (loaded.report.overflows != 0) {
      streams_.out << fmt::format("{} elements did not fit {}\n", grouped(loaded.report.overflows),
                                  request_.dtype);
    }
    flush();
  }

  /// @return false if the server can never serve anything, or no later generation.
  bool complain(const Error& why) {
    progress_.reset();
    if (!is_serving_) {
      report_failure(streams_, why.message);
      server_.give_up(why);
      return false;
    }
    if (device::is_device_lost(why)) {
      report_failure(streams_, why.message);
      if (request_.json) print_event({{"event", "lost"}, {"errno", why.errno_value}, {"why", why.message}});
      return false;
    }
    if (!server_.tell_stuck(why)) return true;
    report_failure(streams_, why.message + ": the previous generation stays; the upload is retried");
    if (request_.json) print_event({{"event", "stuck"}, {"errno", why.errno_value}, {"why", why.message}});
    return true;
  }

  void print_event(const Json& members) {
    Json event = json_document();
    event.update(members);
    streams_.out << json_line(event) << '\n';
    flush();
  }

  /// Flushes the output. If the reader has ended or a disk is full, reports this once and continues.
  void flush() {
    if (streams_.out.flush() || std::exchange(is_mute_, true)) return;
    report_failure(streams_,
                   "standard output cannot be written any more: the server goes on without messages");
  }

  void draw() {
    const std::uint64_t total_bytes = loader_.progress().total_bytes();
    if (total_bytes == 0) return;
    if (!progress_) progress_.emplace(streams_, total_bytes);
    progress_->show(loader_.progress().done_bytes());
  }

  const ServeRequest& request_;
  Streams& streams_;
  serve::LeaseServer server_;
  serve::ServeLoader loader_;  // declared after server_, so destroyed first
  std::optional<Progress> progress_;
  bool is_serving_ = false;
  bool is_mute_ = false;
};

int print_status(const ServeRequest& request, Streams& streams) {
  const auto report = serve::query_server(request.status);
  if (!report) return report_failure(streams, report.error().message);
  if (request.json) {
    // Another user's server may have written the report.
    const Json document = parse_json(*report);
    if (document.is_discarded()) return report_failure(streams, request.status + ": the report is no JSON");
    streams.out << json_line(document) << '\n';
  } else if (const auto printed = print_server_status(*report, streams.out); !printed) {
    return report_failure(streams, request.status + ": " + printed.error().message);
  }
  return streams.out ? kDone : kFailed;
}

int start(const ServeRequest& request, Streams& streams) {
  auto plan = plan_request(request, streams);
  if (!plan) return plan.error();
  if (request.socket.empty()) return report_wrong_usage(streams, "--socket is required");
  const BrokenPipeGuard pipes;
  const InterruptGuard guard;
  // Listen before uploading anything: early clients can wait, and a conflict with another server shows at
  // once.
  auto socket = serve::ServeSocket::listen(request.socket);
  if (!socket) return report_failure(streams, socket.error().message);
  return Service(request, std::move(*socket), std::move(*plan), streams).run();
}

}  // namespace

int serve(const Arguments& arguments, Streams& streams) {
  ServeRequest request;
  CommandLine line("serve", "Keep tensors in the memory of devices and share them with other processes.",
                   kServeExamples);
  line.usage("--device --socket SOURCE...");
  line.usage("--status [--json]");
  add_upload_options(line, request);
  line.file(request.socket, "--socket", "PATH", "Unix socket for clients, created with mode 0600.");
  line.flag(request.is_verified, "--verify",
            "Read all data again and compare them with the memory of the devices.");
  line.flag(request.is_frozen, "--no-follow", "Keep the first upload: ignore later changes of the archive.");
  line.file(request.status, "--status", "SOCKET", "Ask the server at SOCKET for its generations and leases.")
      .excludes("--socket")
      .excludes("--device");
  line.flag(request.json, "--json", "Print events, or the status, as JSON: an object in each line.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (!request.status.empty()) {
    if (request.sources.empty()) return print_status(request, streams);
    return report_wrong_usage(streams, "--status takes no SOURCE");
  }
  return start(request, streams);
}

}  // namespace stfs::tools
