// stfs upload: uploads tensors into the memory of devices.
#include "tools/upload/upload.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <ostream>
#include <thread>

#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/upload_report.h"
#include "tools/cli/upload_request.h"
#include "tools/cli/verb.h"
#include "tools/target/journal_text.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr std::chrono::milliseconds kUploadLookEvery{20};

constexpr const char* kUploadExamples =
    "Reads what was selected from its archives (of what lies in a mount too: no byte passes through\n"
    "FUSE) and moves it into one piece of memory on each device, in bounded memory of this process. The\n"
    "memory is given back at the end: this verb tells that it works, and how fast; `stfs serve` keeps it.\n"
    "\n"
    "DEVICE is cpu, cuda:0, cuda:GPU-UUID, or several with commas: a copy on each, read once. @FILE is a\n"
    "file of rules, one a line: PATTERN DEVICE [shard(DIMENSION, PART/PARTS)]. The first one whose PATTERN\n"
    "matches a name decides; # begins a comment; what no rule names stays where it is:\n"
    "  *.q_proj.weight   cuda:0 shard(0, 1/2)    the first half of its rows\n"
    "  *.norm.weight     cuda:0,cuda:1           a copy on each\n"
    "  *                 cpu\n"
    "\n"
    "PATTERN is matched against whole names, * matches dots too; a slice as in NumPy may follow it.\n"
    "DTYPE is one of BF16, F16, F32, F8_E4M3, F8_E5M2 and their FNUZ kinds, in upper or lower case; rounded\n"
    "to the nearest, what is too large becomes infinity or NaN and is counted.\n"
    "\n"
    "Examples:\n"
    "  stfs upload model.safetensors --device cuda:0 --verify\n"
    "  stfs upload model/ --device @tp.rules --dry-run          where what would go, and whether it fits\n"
    "  stfs upload /mnt/model/lm_head.weight --device cpu       one tensor of a mount\n"
    "  stfs upload model.safetensors --device cpu --select '*.k_proj.weight[:, :64]'\n"
    "  stfs upload model.safetensors --device cuda:0 --dtype BF16 --json | jq .bytes_per_second";

struct UploadVerbRequest : UploadRequest {
  bool is_dry_run = false;
  bool verify = false;
  bool json = false;
};

/// Shows the plan, and tells for each device whether it could hold its part.
int show(const upload::Plan& plan, const UploadVerbRequest& request, Streams& streams) {
  PlanMemory memory;
  for (const upload::PlannedDevice& planned : plan.devices) {
    auto backend = upload::Backend::open(planned.device);
    memory.push_back(backend ? (*backend)->memory() : tl::unexpected(backend.error()));
  }
  const UploadOutcome outcome{plan, &memory, nullptr};
  request.json ? print_upload_json(outcome, streams.out) : print_upload_text(outcome, streams.out);
  int code = kDone;
  for (std::size_t at = 0; at < memory.size(); ++at) {
    const upload::PlannedDevice& planned = plan.devices[at];
    if (!memory[at]) {
      code = report_failure(streams, "upload", memory[at].error().message);
    } else if (planned.arena_bytes > memory[at]->free_bytes) {
      code = report_failure(streams, "upload",
                            planned.device.name() + ": " + human_size(planned.arena_bytes) +
                                " are needed and " + human_size(memory[at]->free_bytes) + " are free");
    }
  }
  return streams.out ? code : kFailed;
}

Result<upload::Resident> carry_out(upload::Plan plan, const UploadVerbRequest& request, Streams& streams) {
  upload::UploadOptions options;
  options.verify = request.verify;
  auto started = upload::Upload::start(std::move(plan), options);
  if (!started) return pass_on(std::move(started));
  upload::Upload& upload = **started;
  Progress progress(streams, "upload", upload.progress().total_bytes);
  std::uint64_t shown_bytes = 0;
  while (!upload.is_done()) {
    std::this_thread::sleep_for(kUploadLookEvery);
    if (interrupted()) upload.cancel();
    const std::uint64_t done_bytes = upload.progress().done_bytes;
    progress.advance(done_bytes - shown_bytes);
    shown_bytes = done_bytes;
  }
  return upload.wait();
}

}  // namespace

int upload(const Arguments& arguments, Streams& streams) {
  UploadVerbRequest request;
  CommandLine line("upload", "Move tensors into the memory of devices.", kUploadExamples);
  add_upload_options(line, request);
  line.flag(request.verify, "--verify", "then read all again and compare what lies on the devices");
  line.flag(request.is_dry_run, "-n,--dry-run", "show what would go where, and move nothing");
  line.flag(request.json, "--json", "the plan and what was done as a JSON object");
  if (const auto code = line.parse(arguments, streams)) return *code;

  const auto plan_from = plan_request(request);
  if (!plan_from) return report_refusal(streams, "upload", plan_from.error());
  auto plan = upload::make_plan(*plan_from);
  if (!plan) return report_failure(streams, "upload", plan.error().message);
  for (const auto& model : plan->models) static_cast<void>(report_not_shown(streams, "upload", *model));
  if (request.is_dry_run) return show(*plan, request, streams);

  const InterruptGuard guard;
  const auto resident = carry_out(std::move(*plan), request, streams);
  if (!resident) return report_failure(streams, "upload", resident.error().message);
  const UploadOutcome outcome{resident->plan, nullptr, &resident->report};
  request.json ? print_upload_json(outcome, streams.out) : print_upload_text(outcome, streams.out);
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
