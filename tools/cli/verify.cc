// stfs verify: reads every byte, compares the tensors with a record, and can write a new record.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <ostream>
#include <thread>

#include "core/base/parallel.h"
#include "core/model/common_mode.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/findings.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_charts.h"
#include "tools/cli/output_path.h"
#include "tools/cli/progress.h"
#include "tools/cli/sums_file.h"
#include "tools/cli/tensor_scan.h"
#include "tools/cli/verb.h"
#include "tools/compare/changed_files.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kVerifyExamples =
    "Checks the rules of the format, the agreement of index and shards, and that every byte can be read.\n"
    "Prints for each tensor its checksum and the number of its NaNs and infinities; - if its dtype has no "
    "such\n"
    "value. The checksum is XXH128, as of xxh128sum and of the attribute user.safetensors.checksum in a "
    "mount.\n"
    "With --against, prints the differences from a record instead: other bytes, dtypes or shapes, missing "
    "and\n"
    "new tensors. The exit code is 1 if there is a problem.\n"
    "\n"
    "Examples:\n"
    "  stfs verify model.safetensors\n"
    "  stfs verify model.safetensors --record model.sums.json         write a record\n"
    "  stfs verify model.safetensors --against model.sums.json        compare later, or after a copy\n"
    "  stfs verify --finite checkpoint.safetensors > /dev/null && echo no NaN, no infinity\n"
    "  stfs verify model.safetensors.index.json lm_head.weight        one tensor of a sharded model\n"
    "  stfs verify --plot model.safetensors                           histogram, outliers, NaNs by layer\n"
    "  stfs verify --json model.safetensors | jq '.tensors[] | select(.nan > 0).name'";

struct VerifyRequest {
  std::string target;
  std::vector<std::string> names;
  std::string record;
  std::string against;
  std::uint64_t threads = std::max(std::thread::hardware_concurrency(), 1U);
  bool is_finite = false;
  PlotRequest plot;
  bool json = false;
};

using Positions = std::vector<std::uint32_t>;

/// The tensors that were read, and their problems.
struct Verdict {
  std::uint64_t size_bytes = 0;
  std::vector<TensorScan> scans;  // in the order of the data
  Findings findings;
  std::vector<std::string> changed_files;  // files that changed during the read
  std::vector<Chart> charts;               // if requested

  [[nodiscard]] std::size_t problems(const Model& model) const {
    return findings.size() + changed_files.size() + model.problems().size();
  }
};

Result<Positions> select(const Target& target, const VerifyRequest& request) {
  if (!target.tensor && request.names.empty()) {
    Positions all(target.model->tensors().size());
    std::iota(all.begin(), all.end(), 0U);
    return all;
  }
  auto positions = find_tensors(target, request.target, request.names);
  RETURN_IF_ERROR(positions);
  std::ranges::sort(*positions);
  positions->erase(std::unique(positions->begin(), positions->end()), positions->end());
  return positions;
}

Sums sums_of(const Model& model, const Verdict& verdict) {
  Sums sums;
  sums.reserve(verdict.scans.size());
  for (const TensorScan& scan : verdict.scans) {
    const Tensor tensor = model.tensors()[scan.tensor];
    sums.push_back(
        {std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, scan.checksum});
  }
  std::ranges::sort(sums, {}, &RecordedTensor::name);
  return sums;
}

/// Reads and compares the tensors, and records them if they have no problem.
Result<Verdict> judge(const Target& target, const VerifyRequest& request, Streams& streams) {
  const Model& model = *target.model;
  Verdict verdict;
  auto tensors = select(target, request);
  RETURN_IF_ERROR(tensors);
  for (const std::uint32_t at : *tensors) verdict.size_bytes += model.tensors()[at].data.size_bytes;
  // Open the files first, so that an unreadable or unwritable file shows before the work and not after it.
  Result<Sums> recorded;
  if (!request.against.empty()) recorded = read_sums(request.against);
  RETURN_IF_ERROR(recorded);
  std::optional<NewFile> record;
  if (!request.record.empty()) {
    auto file = create_output(request.record, model, request.plot.is_replacing, common_mode(model));
    RETURN_IF_ERROR(file);
    record.emplace(std::move(*file));
  }
  {
    std::optional<ValueCharts> values;
    TakeSpectrum take;
    if (request.plot.needs_charts()) {
      values.emplace(model, *tensors);
      take = [&](std::uint32_t tensor, const ValueSpectrum& spectrum) { values->take(tensor, spectrum); };
    }
    Work work(watch_on(streams));
    auto scans = scan_tensors(model, *tensors, request.threads, work, take);
    RETURN_IF_ERROR(scans);
    verdict.scans = std::move(*scans);
    if (values) verdict.charts = values->charts(verdict.scans);
  }
  find_unreadable(model, verdict.scans, verdict.findings);
  if (!request.against.empty()) {
    find_changed(model, verdict.scans, *recorded, verdict.findings);
    const bool is_whole_model = !target.tensor && request.names.empty();
    if (is_whole_model) find_missing(model, *recorded, verdict.findings);
  }
  if (request.is_finite) find_non_finite(model, verdict.scans, verdict.findings);
  verdict.changed_files = changed_files(model);
  if (record && verdict.problems(model) == 0) {
    auto done = append_sums(*record, model.path().filename().string(), sums_of(model, verdict));
    if (done) done = record->finish();
    RETURN_IF_ERROR(done);
  }
  return verdict;
}

void print_json(const Model& model, const Verdict& verdict, std::ostream& out) {
  std::vector<Json> problems;
  for (const ModelProblem& problem : model.problems()) {
    problems.push_back({{"kinds", {"model"}}, {"explanation", problem.message}});
  }
  for (const std::string& file : verdict.changed_files) {
    problems.push_back({{"kinds", {"changed"}}, {"explanation", file + " was changed during the command"}});
  }
  for (const Finding& finding : verdict.findings) {
    problems.push_back({{"name", finding.name}, {"kinds", finding.kinds}, {"explanation", finding.text}});
  }
  JsonStream document(out);
  document.member("path", json_path(model.path()));
  document.array("tensors", verdict.scans, [&](const TensorScan& scan) {
    const Tensor tensor = model.tensors()[scan.tensor];
    Json row = json_of(tensor);
    row["checksum"] = scan.failure ? Json() : Json(scan.checksum);
    row["nan"] = has_nan(tensor.dtype) && !scan.failure ? Json(scan.non_finite.nan) : Json();
    row["infinite"] = has_infinity(tensor.dtype) && !scan.failure ? Json(scan.non_finite.infinite) : Json();
    return row;
  });
  document.array("problems", problems, std::identity());
  document.end();
}

void print_table(const Model& model, const Verdict& verdict, std::ostream& out) {
  using Align = Table::Align;
  using Row = std::array<std::string, 5>;
  Table table({Align::Left, Align::Left, Align::Left, Align::Right, Align::Right});
  const Row heading = {"name", "dtype", "checksum", "NaN", "infinite"};
  const auto cells = [&](const TensorScan& scan) {
    const Tensor tensor = model.tensors()[scan.tensor];
    Row row = {printable_name(tensor.name), std::string(name_of(tensor.dtype)), "unreadable", "-", "-"};
    if (scan.failure) return row;
    row[2] = scan.checksum;
    if (has_nan(tensor.dtype)) row[3] = grouped(scan.non_finite.nan);
    if (has_infinity(tensor.dtype)) row[4] = grouped(scan.non_finite.infinite);
    return row;
  };
  table.print(out, verdict.scans, cells, heading);
}

void print_summary(const VerifyRequest& request, const Model& model, const Verdict& verdict,
                   std::ostream& out) {
  const std::size_t problems = verdict.problems(model);
  out << fmt::format("read {}, {}: ", counted(verdict.scans.size(), "tensor"),
                     human_size(verdict.size_bytes));
  if (!request.record.empty()) {
    out << "recorded in " << printable(request.record) << '\n';
  } else if (problems == 0 && request.against.empty()) {
    out << "no problem\n";
  } else if (problems == 0) {
    out << "as recorded in " << printable(request.against) << '\n';
  } else {
    out << counted(problems, "problem") << '\n';
  }
}

int report(const VerifyRequest& request, const Model& model, const Verdict& verdict, Streams& streams) {
  int code = report_problems_and_neighbours(streams, model);
  for (const std::string& file : verdict.changed_files) {
    code = report_failure(streams, file + ": was changed during the command: verify it again");
  }
  for (const Finding& finding : verdict.findings) {
    code = report_failure(
        streams, fmt::format("{}: {}: {}", request.target, printable_name(finding.name), finding.text));
  }
  if (!request.record.empty() && code != kDone) {
    report_failure(streams, request.record + ": not written: a record needs a model without problems");
  }
  return code;
}

}  // namespace

int verify(const Arguments& arguments, Streams& streams) {
  VerifyRequest request;
  CommandLine line("verify", "Read every byte: checksums, NaNs, and differences from a record.",
                   kVerifyExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.positionals(request.names, "NAME", "Verify these tensors only.");
  line.file(request.record, "--record", "FILE", "Write a record of dtypes, shapes and checksums (JSON).");
  declare_plot_options(line, request.plot,
                       "a histogram of the values, and the outliers and NaNs of each layer");
  line.flag(request.plot.is_replacing, "-f,--force", "With --record or --svg: replace FILE if it exists.");
  line.file(request.against, "--against", "FILE", "Compare with a record.").excludes("--record");
  line.flag(request.is_finite, "--finite", "Report NaNs and infinities as problems.");
  line.number(request.threads, "--threads", "N",
              "Read N tensors at a time. Default: the number of processors.", 1, kMostWorkers);
  line.flag(request.json, "--json", "Print tensors and problems as a JSON object.").excludes("--plot");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (const auto mistake = mistake_in(line, request.plot)) return report_wrong_usage(streams, *mistake);
  if (request.plot.is_replacing && request.record.empty() && request.plot.svg.empty())
    return report_wrong_usage(streams, "--force needs --record or --svg");

  const auto target = open_target(request.target, Use::Tensors);
  if (!target) return report_failure(streams, target.error().message);
  if (target->tensor && !request.names.empty()) {
    return report_wrong_usage(streams,
                              request.target + ": is a tensor's file: NAME needs an archive or a mount");
  }
  if (!request.plot.svg.empty()) {
    const auto why =
        obstacle_at(request.plot.svg, {{target->model.get(), "TARGET"}}, request.plot.is_replacing);
    if (why) return report_failure(streams, request.plot.svg + ": " + *why);
  }
  std::optional<InterruptGuard> guard(std::in_place);
  const auto verdict = judge(*target, request, streams);
  if (!verdict) return report_failure(streams, verdict.error().message);
  guard.reset();
  const int code = report(request, *target->model, *verdict, streams);
  const auto shown = show_charts(verdict->charts, request.plot, {target->model.get()}, streams);
  if (!shown) return report_failure(streams, shown.error().message);
  if (request.plot.is_wanted) {
    if (!request.record.empty() || !request.against.empty())
      print_summary(request, *target->model, *verdict, streams.out);
  } else if (request.json) {
    print_json(*target->model, *verdict, streams.out);
  } else if (request.record.empty() && request.against.empty()) {
    print_table(*target->model, *verdict, streams.out);
    if (streams.out_is_terminal) print_summary(request, *target->model, *verdict, streams.out);
  } else if (request.record.empty() || code == kDone) {
    print_summary(request, *target->model, *verdict, streams.out);
  }
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
