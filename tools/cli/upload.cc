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
    "Reads the selected tensors from their archives (for a mount too: no byte passes through FUSE) and "
    "moves\n"
    "them into one piece of memory on each device. Frees this memory at the end: the verb shows that an "
    "upload\n"
    "works, and its speed. `stfs serve` keeps the tensors.\n"
    "\n"
    "DEVICE is cpu, cuda:0, cuda:GPU-UUID, or several with commas: each gets a copy, read once. @FILE is a\n"
    "file of rules, one in a line: PATTERN DEVICE [shard(DIMENSION, PART/PARTS)]. The first rule whose "
    "PATTERN\n"
    "matches a name decides. # begins a comment. A tensor without a rule is not uploaded:\n"
    "  *.q_proj.weight   cuda:0 shard(0, 1/2)    the first half of its rows\n"
    "  *.norm.weight     cuda:0,cuda:1           a copy on each\n"
    "  *                 cpu\n"
    "\n"
    "PATTERN is matched against whole names; * matches dots too. A slice as in NumPy may follow it.\n"
    "DTYPE is BF16, F16, F32, F8_E4M3, F8_E5M2 or one of their FNUZ kinds, in upper or lower case. Values "
    "are\n"
    "rounded to the nearest. A value that is too large becomes infinity or NaN and is counted.\n"
    "\n"
    "Examples:\n"
    "  stfs upload model.safetensors --device cuda:0 --verify\n"
    "  stfs upload model/ --device @tp.rules --dry-run          show the plan and the free memory\n"
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
  line.flag(request.verify, "--verify",
            "Read all data again and compare them with the memory of the devices.");
  line.flag(request.is_dry_run, "-n,--dry-run",
            "Show the plan and the free memory of the devices. Move nothing.");
  line.flag(request.json, "--json", "Print the plan and the result as a JSON object.");
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
