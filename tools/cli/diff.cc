// stfs diff: compares two models tensor by tensor.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <thread>

#include "core/base/parallel.h"
#include "tools/cli/command_line.h"
#include "tools/cli/delta_output.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/diff_json.h"
#include "tools/cli/diff_report.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_charts.h"
#include "tools/cli/output_path.h"
#include "tools/cli/progress.h"
#include "tools/cli/publish_output.h"
#include "tools/cli/verb.h"
#include "tools/compare/changed_files.h"
#include "tools/compare/renamed_tensors.h"
#include "tools/target/target.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

constexpr const char* kDiffExamples =
    "Prints tensors that only one model has, other names of the same tensor (with equal dtype, shape and\n"
    "bytes), other dtypes, other shapes, other bytes, and other metadata.\n"
    "For tensors with other bytes, prints statistics of their elements:\n"
    "  different   elements whose bits differ\n"
    "  not finite  elements that are NaN or infinite in A or B; the columns to the right leave them out\n"
    "  largest     the largest |a - b|\n"
    "  relative    the largest |a - b| / max(|a|, |b|)\n"
    "  cosine      the cosine similarity of A and B; - if one has only zeros\n"
    "  norm        the L2 norms of A, of B, and of the difference\n"
    "A GLOB is matched against whole names; * matches dots and slashes too. With GLOBs, or if A or B is a\n"
    "tensor's file in a mount, metadata is not compared.\n"
    "The exit code is 0 if A and B are equal, 1 if they differ or if something failed, and 2 for wrong\n"
    "usage. With --out it is 0 if OUT was written. Differences go to standard output, failures to standard\n"
    "error.\n"
    "OUT is a delta: it has the tensors of B that A lacks or that differ, and names what B lacks or has by\n"
    "another name.\n"
    "stfs repack --delta writes B again from A and OUT.\n"
    "With --encoding, OUT is a directory, in which a version for weight sync is published: OUT/weight_vN "
    "has\n"
    "the compressed diff of each tensor whose bytes differ. Receivers that have A make B of it, among them\n"
    "those of SGLang, slime and miles. A and B must have the same names, dtypes and shapes. The index of "
    "the\n"
    "version is written last, when all else is on stable storage. xor diffs are smaller and faster; "
    "overwrite\n"
    "diffs may be applied twice. No statistics are printed.\n"
    "If B is a mount, programs may write to it meanwhile: each tensor is published as it was at one moment,\n"
    "and the command prints the generation of the mount, which is the next command's --since.\n"
    "\n"
    "Examples:\n"
    "  stfs diff model.safetensors tuned.safetensors\n"
    "  stfs diff model.safetensors tuned.safetensors '*.mlp.*'       some tensors\n"
    "  stfs diff model.safetensors.index.json model.safetensors      the shards, and one archive of them\n"
    "  stfs diff -q model.safetensors copy.safetensors && echo same  stop each tensor at its first "
    "difference\n"
    "  stfs diff --plot model.safetensors tuned.safetensors          a map of the layers\n"
    "  stfs diff /mnt/model copy.safetensors                         through a mount\n"
    "  stfs diff model.safetensors tuned.safetensors --out tuned.delta.safetensors    keep what differs\n"
    "  stfs diff model.safetensors tuned.safetensors --encoding xor --version 42 --out published    a "
    "version\n"
    "  stfs diff last /mnt/model --encoding xor --version 43 --out published --since 0     of what changed\n"
    "  stfs diff --json model.safetensors tuned.safetensors | jq '.differences[].name'";

struct DiffRequest {
  std::string a;
  std::string b;
  std::vector<std::string> globs;
  std::uint64_t threads = std::max(std::thread::hardware_concurrency(), 1U);
  std::string out;
  PublishRequest publish;
  PlotRequest plot;
  bool is_brief = false;
  bool json = false;
};

/// Opens A and B. Reports each model that cannot be opened.
std::optional<std::pair<Target, Target>> open_both(const DiffRequest& request, Streams& streams) {
  // Others read a published version, so another user may not choose its source.
  const Links links = request.publish.encoding.empty() ? Links::All : Links::Trusted;
  auto a = open_target(request.a, Use::Tensors, {.links = links});
  if (!a) report_failure(streams, a.error().message);
  auto b = open_target(request.b, Use::Tensors, {.links = links});
  if (!b) report_failure(streams, b.error().message);
  if (!a || !b) return std::nullopt;
  return std::pair(std::move(*a), std::move(*b));
}

/// Reports problems that may hide a difference.
int report_diff_problems(const DiffRequest& request, const DiffReport& report, Streams& streams) {
  int code = report_problems(streams, report.models.a);
  code = std::max(code, report_problems(streams, report.models.b));
  for (const std::string& glob : report.unused_globs) {
    const std::string why = unmatched_text(glob, {&report.models.a.tensors(), &report.models.b.tensors()});
    code = report_failure(streams, fmt::format("{}, {}: {}", request.a, request.b, why));
  }
  for (const std::string& file : report.changed_files) {
    code = report_failure(streams, file + ": was changed during the command: compare it again");
  }
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    const TensorComparison& comparison = report.comparisons[at];
    if (!comparison.failure) continue;
    const TensorPair& pair = report.difference.pairs[at];
    const bool is_b = comparison.is_failure_of_b;
    const std::string_view name =
        is_b ? report.models.b.tensors()[pair.b].name : report.models.a.tensors()[pair.a].name;
    code = report_failure(streams, fmt::format("{}: {}: {}", is_b ? request.b : request.a,
                                               printable_name(name), comparison.failure->message));
  }
  return code;
}

}  // namespace

int diff(const Arguments& arguments, Streams& streams) {
  DiffRequest request;
  CommandLine line("diff", "Compare two models tensor by tensor.", kDiffExamples);
  line.usage("A B [GLOB...]");
  line.usage("--out A B");
  line.usage("--encoding --version --out A B");
  line.positional(request.a, "A", "Archive, sharded model, or path inside a mount.");
  line.positional(request.b, "B", "Archive, sharded model, or path inside a mount.");
  line.positionals(request.globs, "GLOB", "Compare only tensors whose name matches a GLOB.");
  line.flag(request.is_brief, "-q,--brief",
            "Print only the summary. Stop comparing a tensor at its first difference.");
  line.number(request.threads, "--threads", "N", "Use N threads. Default: the number of processors.", 1,
              kMostWorkers);
  line.file(request.out, "--out", "OUT", "Write an archive of what leads from A to B, a delta.");
  declare_plot_options(line, request.plot, "a map of the layers by relative change, in place of the tables");
  line.flag(request.plot.is_replacing, "-f,--force", "Replace OUT, or FILE of --svg, if it exists.");
  declare_publish_options(line, request.publish);
  line.flag(request.json, "--json", "Print differences and problems as a JSON object.").excludes("--plot");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (line.has("--out") && request.out.empty()) {
    return report_wrong_usage(streams, "--out: the name of OUT is empty");
  }
  for (const char* option : {"--plot", "--svg"}) {
    if (line.has(option) && (request.is_brief || !request.publish.encoding.empty()))
      return report_wrong_usage(
          streams, fmt::format("{}: is not for {}", option, request.is_brief ? "--brief" : "--encoding"));
  }
  if (const auto mistake = mistake_in(line, request.plot)) return report_wrong_usage(streams, *mistake);
  if (const auto mistake = mistake_in(line, request.publish)) return report_wrong_usage(streams, *mistake);

  const auto targets = open_both(request, streams);
  if (!targets) return kFailed;
  const auto& [a, b] = *targets;
  if ((a.tensor || b.tensor) && !request.globs.empty()) {
    return report_wrong_usage(
        streams, (a.tensor ? request.a : request.b) + ": is a tensor's file: GLOB needs archives or mounts");
  }
  if (!request.out.empty() && (a.tensor || b.tensor || !request.globs.empty())) {
    return report_wrong_usage(streams, "--out: a delta or version is of two whole models, without GLOB");
  }
  if (!request.publish.encoding.empty()) {
    return publish(request.publish,
                   {*a.model, *b.model, request.out, request.threads, request.json, request.b}, streams);
  }
  if (!request.out.empty()) {
    const auto why =
        obstacle_at(request.out, {{a.model.get(), "A"}, {b.model.get(), "B"}}, request.plot.is_replacing);
    if (why) return report_failure(streams, request.out + ": " + *why);
  }
  if (!request.plot.svg.empty()) {
    const auto why = obstacle_at(request.plot.svg, {{a.model.get(), "A"}, {b.model.get(), "B"}},
                                 request.plot.is_replacing);
    if (why) return report_failure(streams, request.plot.svg + ": " + *why);
  }
  DiffReport report{.models = {*a.model, *b.model}};
  NameGlobs globs(request.globs);
  report.difference = difference_of({*a.model, a.tensor}, {*b.model, b.tensor}, globs);
  report.unused_globs = globs.unused();

  std::optional<InterruptGuard> guard(std::in_place);
  std::optional<Work> work(std::in_place, watch_on(streams));
  auto comparisons =
      compare_tensors(report.models, report.difference.pairs,
                      {.threads = request.threads, .has_statistics = !request.is_brief, .work = &*work});
  auto renamed =
      comparisons ? find_renamed(report.models, report.difference, request.threads, *work) : Result<void>();
  work.reset();
  if (!comparisons) return report_failure(streams, comparisons.error().message);
  if (!renamed) return report_failure(streams, renamed.error().message);
  report.comparisons = std::move(*comparisons);
  for (const Model* model : {a.model.get(), b.model.get()}) {
    for (std::string& file : changed_files(*model)) report.changed_files.push_back(std::move(file));
  }
  report.has_problem = report_diff_problems(request, report, streams) != kDone;
  if (!request.out.empty()) {
    if (report.has_problem) return report_failure(streams, request.out + ": was not written");
    auto written =
        write_delta(report, {.path = request.out, .is_replacing = request.plot.is_replacing}, streams);
    if (!written) return report_failure(streams, written.error().message);
    report.delta = std::move(*written);
  }
  guard.reset();

  if (request.plot.needs_charts()) {
    const std::array charts = {chart_of_changes(report)};
    const auto shown = show_charts(charts, request.plot, {&report.models.a, &report.models.b}, streams);
    if (!shown) return report_failure(streams, shown.error().message);
  }
  if (request.json) {
    print_diff_json(report, streams.out);
  } else {
    if (!request.is_brief && !request.plot.is_wanted) print_differences(report, streams.out);
    print_diff_summary(report, streams.out);
  }
  return streams.out && (report.delta || report.is_equal()) ? kDone : kFailed;
}

}  // namespace stfs::tools
