// stfs upload: uploads tensors into the memory of devices.
#include "tools/upload/upload.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ostream>
#include <thread>
#include <vector>

#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/upload_request.h"
#include "tools/cli/verb.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

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
    "rounded to the nearest. A value that is too large becomes infinity or NaN and is counted. Scales stay "
    "as\n"
    "they are. FP8 tensors with scales beside them are refused: `stfs repack --dequantize` applies the "
    "scales,\n"
    "--cast converts the values alone.\n"
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

/// The present memory of each of a plan's devices, or the reason why the device cannot be used.
using PlanMemory = std::vector<Result<device::MemoryInfo>>;

struct Outcome {
  const upload::Plan& plan;
  const PlanMemory* memory = nullptr;            // set if the plan is only shown
  const upload::UploadReport* report = nullptr;  // set if the plan was carried out
};

double seconds_of(const upload::UploadReport& report) {
  return std::chrono::duration<double>(report.duration).count();
}

double speed_of(const upload::UploadReport& report) {
  const double seconds = seconds_of(report);
  return seconds > 0 ? static_cast<double>(report.read_bytes) / seconds : 0;
}

/// Returns the number of tensors on each device.
std::vector<std::uint64_t> counts_of(const upload::Plan& plan) {
  std::vector<std::uint64_t> counts(plan.devices.size());
  for (const upload::PlannedTensor& tensor : plan.tensors) counts[tensor.device] += 1;
  return counts;
}

std::string human_speed(double bytes_per_second) {
  return human_size(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
}

void print_tensors(const upload::Plan& plan, std::ostream& out) {
  using Align = Table::Align;
  using Row = std::array<std::string, 5>;
  Table table({Align::Left, Align::Left, Align::Left, Align::Left, Align::Right});
  const Row heading = {"name", "dtype", "shape", "device", "size"};
  const auto cells = [&](const upload::PlannedTensor& tensor) {
    std::string dtype(name_of(tensor.dtype));
    if (tensor.dtype != tensor.source_dtype)
      dtype = fmt::format("{} from {}", dtype, name_of(tensor.source_dtype));
    return Row{printable_name(tensor.name), std::move(dtype), shape_text(tensor.shape),
               plan.devices[tensor.device].device.name(), human_size(tensor.place.size_bytes)};
  };
  table.print(out, plan.tensors, cells, heading);
}

void print_json(const Outcome& outcome, std::ostream& out) {
  const upload::Plan& plan = outcome.plan;
  const auto counts = counts_of(plan);
  JsonStream document(out);
  document.array("devices", plan.devices, [&](const upload::PlannedDevice& planned) {
    const auto at = static_cast<std::size_t>(&planned - plan.devices.data());
    Json row;
    row["device"] = planned.device.name();
    row["tensors"] = counts[at];
    row["arena_bytes"] = planned.arena_bytes;
    if (outcome.memory != nullptr) {
      const auto& memory = (*outcome.memory)[at];
      row["free_bytes"] = memory ? Json(memory->free_bytes) : Json();
      row["problem"] = memory ? Json() : Json(memory.error().message);
    }
    return row;
  });
  document.array("tensors", plan.tensors, [&](const upload::PlannedTensor& tensor) {
    return Json{{"name", tensor.name},
                {"dtype", name_of(tensor.dtype)},
                {"source_dtype", name_of(tensor.source_dtype)},
                {"shape", tensor.shape},
                {"device", plan.devices[tensor.device].device.name()},
                {"offset", tensor.place.offset},
                {"size_bytes", tensor.place.size_bytes}};
  });
  document.member("left_out", plan.left_out);
  document.member("read_bytes", plan.read_bytes());
  if (outcome.report != nullptr) {
    const upload::UploadReport& report = *outcome.report;
    document.member("duration_s", seconds_of(report));
    document.member("bytes_per_second", speed_of(report));
    document.member("cached_bytes", report.cached_bytes);
    document.member("overflows", report.overflows);
    document.member("verified_bytes", report.verified_bytes);
  }
  document.end();
}

void print_text(const Outcome& outcome, std::ostream& out) {
  const upload::Plan& plan = outcome.plan;
  if (outcome.memory != nullptr) print_tensors(plan, out);
  const auto counts = counts_of(plan);
  for (std::size_t at = 0; at < plan.devices.size(); ++at) {
    out << fmt::format("{}: {}, {}", plan.devices[at].device.name(), counted(counts[at], "tensor"),
                       human_size(plan.devices[at].arena_bytes));
    if (outcome.memory != nullptr) {
      const auto& memory = (*outcome.memory)[at];
      out << (memory ? fmt::format(" of {} free", human_size(memory->free_bytes))
                     : " of a device that cannot be used");
    }
    out << '\n';
  }
  if (!plan.left_out.empty()) {
    out << fmt::format("not uploaded: {} without a rule\n", counted(plan.left_out.size(), "tensor"));
  }
  if (outcome.report == nullptr) return;
  const upload::UploadReport& report = *outcome.report;
  out << fmt::format("moved {} in {:.3f} s, {}\n", human_size(report.read_bytes), seconds_of(report),
                     human_speed(speed_of(report)));
  if (report.cached_bytes < report.read_bytes) {
    out << fmt::format("{} of it came from the disk\n", human_size(report.read_bytes - report.cached_bytes));
  }
  if (report.overflows > 0) {
    out << counted(report.overflows, "element") << " did not fit the new dtype\n";
  }
  if (report.verified_bytes > 0) {
    out << fmt::format("verified {} on the devices\n", human_size(report.verified_bytes));
  }
}

/// Shows the plan, and reports each device that could not hold its part.
int show(const upload::Plan& plan, const UploadVerbRequest& request, Streams& streams) {
  PlanMemory memory;
  for (const upload::PlannedDevice& planned : plan.devices) {
    auto backend = device::Backend::open(planned.device);
    memory.push_back(backend ? (*backend)->memory() : tl::unexpected(backend.error()));
  }
  const Outcome outcome{plan, &memory, nullptr};
  request.json ? print_json(outcome, streams.out) : print_text(outcome, streams.out);
  int code = kDone;
  for (std::size_t at = 0; at < memory.size(); ++at) {
    const upload::PlannedDevice& planned = plan.devices[at];
    if (!memory[at]) {
      code = report_failure(streams, memory[at].error().message);
    } else if (planned.arena_bytes > memory[at]->free_bytes) {
      code =
          report_failure(streams, planned.device.name() + ": " + human_size(planned.arena_bytes) +
                                      " are needed and " + human_size(memory[at]->free_bytes) + " are free");
    }
  }
  return streams.out ? code : kFailed;
}

Result<upload::Resident> carry_out(upload::Plan plan, const UploadVerbRequest& request, Streams& streams) {
  upload::UploadOptions options;
  options.verify = request.verify;
  auto started = upload::Upload::start(std::move(plan), options);
  RETURN_IF_ERROR(started);
  upload::Upload& upload = **started;
  Progress progress(streams, upload.progress().total_bytes());
  while (!upload.is_done()) {
    std::this_thread::sleep_for(kUploadLookEvery);
    if (interrupted()) upload.cancel();
    progress.show(upload.progress().done_bytes());
  }
  return upload.wait();
}

}  // namespace

int upload(const Arguments& arguments, Streams& streams) {
  UploadVerbRequest request;
  CommandLine line("upload", "Move tensors into the memory of devices.", kUploadExamples);
  line.usage("--device SOURCE...");
  add_upload_options(line, request);
  line.flag(request.verify, "--verify",
            "Read all data again and compare them with the memory of the devices.");
  line.flag(request.is_dry_run, "-n,--dry-run",
            "Show the plan and the free memory of the devices. Move nothing.");
  line.flag(request.json, "--json", "Print the plan and the result as a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;

  const auto plan_from = plan_request(request, streams);
  if (!plan_from) return plan_from.error();
  auto plan = upload::make_plan(*plan_from);
  if (!plan) return report_failure(streams, plan.error().message);
  for (const auto& model : plan->models) report_not_shown(streams, *model);
  if (request.is_dry_run) return show(*plan, request, streams);

  const InterruptGuard guard;
  const auto resident = carry_out(std::move(*plan), request, streams);
  if (!resident) return report_failure(streams, resident.error().message);
  const Outcome outcome{resident->plan, nullptr, &resident->report};
  request.json ? print_json(outcome, streams.out) : print_text(outcome, streams.out);
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
