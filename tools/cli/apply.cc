// stfs apply: all tensors of a delta change in the target, or none.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/parallel.h"
#include "core/model/delta.h"
#include "tools/cli/change.h"
#include "tools/cli/command_line.h"
#include "tools/cli/delta_commit.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/mismatch.h"
#include "tools/cli/verb.h"
#include "tools/cli/version_change.h"
#include "tools/target/source_readers.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kApplyExamples =
    "DELTA is an archive of tensors that TARGET has too, each with the same dtype and shape. If a tensor is\n"
    "missing in TARGET or differs, or if a shard of either is missing, an error names it and nothing "
    "changes.\n"
    "DELTA may also be the directory of a version that training has published (weight_v000042): see\n"
    "stfs-pull(1). Each version is applied exactly once. Its checksums are compared before the commit.\n"
    "A DELTA of stfs diff --out is refused if it was made for another base. If it adds, removes, renames or\n"
    "retypes tensors, TARGET is changed as by stfs commit. TARGET keeps its own metadata.\n"
    "After any failure TARGET holds all new tensors or all old tensors.\n"
    "\n"
    "Examples:\n"
    "  stfs apply model.safetensors lora-merged.safetensors\n"
    "  stfs apply --dry-run model.safetensors delta.safetensors\n"
    "  stfs apply /mnt/model delta.safetensors           the mount shows the change at once\n"
    "  stfs apply checkpoint published/weight_v000042    the next version of a weight sync";

struct ApplyRequest {
  std::string target;
  std::string delta;
  EditOptions options;
  std::uint64_t threads = 0;
};

/// A plan of the changes: pairs of positions, in the order of the target's data.
struct Plan {
  struct Step {
    std::uint32_t target = 0;
    std::uint32_t delta = 0;
  };
  struct Problem {
    std::uint32_t delta = 0;
    Mismatch mismatch;
  };
  std::vector<Step> steps;
  std::vector<Problem> problems;
  std::optional<std::string> misfit;  // why a delta of `stfs diff --out` can't be applied as a whole
  std::uint64_t size_bytes = 0;
};

/// Returns the reason why an archive can't be applied as a delta, from its metadata. Nothing: it is no delta,
/// or it fits.
std::optional<std::string> misfit_of(const Model& delta, const TensorIndex& target) {
  if (!is_delta(delta.metadata())) return std::nullopt;
  const auto parsed = parse_delta(delta.metadata());
  if (!parsed) return parsed.error().message;
  if (const auto fits = check_delta(*parsed, delta.tensors(), target); !fits) return fits.error().message;
  return std::nullopt;
}

/// Returns true if a delta changes more in the target than bytes. False for a delta that does not fit.
bool changes_structure(const Model& delta, const Model& target) {
  const auto parsed = is_delta(delta.metadata()) ? parse_delta(delta.metadata()) : Result<Delta>();
  if (!is_delta(delta.metadata()) || !parsed) return false;
  auto merge = merge_of(*parsed, delta, target);
  if (!merge) return false;
  merge->metadata.clear();
  return !merge->is_patch();
}

/// Applies a delta that changes the structure of the target.
Result<int> apply_structure(const ApplyRequest& request, Streams& streams) {
  const auto delta = open_delta(request.delta);
  if (!delta) return report_failure(streams, delta.error().message);
  return commit_delta({.base = request.target, .options = request.options, .keeps_metadata = true}, *delta,
                      streams);
}

Plan plan_of(const TensorIndex& target, const Model& delta_model) {
  const TensorIndex& delta = delta_model.tensors();
  Plan plan;
  plan.misfit = misfit_of(delta_model, target);
  for (std::uint32_t position = 0; position < delta.size(); ++position) {
    const auto found = target.find(delta[position].name);
    Mismatch mismatch =
        found ? mismatch_of(delta[position], target[*found]) : Mismatch{{"missing"}, "missing in the target"};
    if (!mismatch.kinds.empty()) {
      plan.problems.push_back({position, std::move(mismatch)});
      continue;
    }
    plan.steps.push_back({*found, position});
    plan.size_bytes += delta[position].data.size_bytes;
  }
  std::ranges::sort(plan.steps, {}, &Plan::Step::target);
  return plan;
}

Result<void> apply_plan(Change& change, const Plan& plan, const Model& delta) {
  for (const Plan::Step& step : plan.steps) {
    const Tensor tensor = delta.tensors()[step.delta];
    auto put =
        change.what().put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
    RETURN_IF_ERROR(put);
  }
  return change.carry_out(plan.size_bytes, [&]() -> Result<void> {
    for (const Plan::Step& step : plan.steps) {
      RETURN_IF_ERROR(change.write(delta, step.delta));
    }
    return {};
  });
}

/// Returns true if the delta can be applied. An incomplete delta may lack tensors that it should change, and
/// an incomplete target may lack tensors that should be changed, so both models must have no problems.
bool is_possible(const Plan& plan, const Model& target, const Model& delta) {
  return plan.problems.empty() && !plan.misfit && target.problems().empty() && delta.problems().empty();
}

void print_text(const ApplyRequest& request, const Plan& plan, const Model& delta, std::ostream& out) {
  const std::string what = fmt::format("{} of {}, {}", counted(plan.steps.size(), "tensor"),
                                       printable(request.target), human_size(plan.size_bytes));
  if (!request.options.is_dry_run) {
    out << fmt::format("changed {}\n", what);
    return;
  }
  using Align = Table::Align;
  Table table({Align::Left, Align::Left, Align::Left, Align::Right});
  const auto cells = [&delta](const Plan::Step& step) {
    const Tensor tensor = delta.tensors()[step.delta];
    return std::array<std::string, 4>{printable_name(tensor.name), std::string(name_of(tensor.dtype)),
                                      shape_text(tensor.shape), human_size(tensor.data.size_bytes)};
  };
  table.print(out, plan.steps, cells);
  out << fmt::format("would change {}\n", what);
}

void print_json(const ApplyRequest& request, const Plan& plan, const Model& target, const Model& delta,
                std::ostream& out) {
  Json document = json_document();
  document["path"] = json_path(target.path());
  document["delta"] = json_path(delta.path());
  document["applied"] = !request.options.is_dry_run && is_possible(plan, target, delta);
  document["size_bytes"] = plan.size_bytes;
  document["tensors"] = Json::array();
  for (const Plan::Step& step : plan.steps) {
    document["tensors"].push_back(json_of(delta.tensors()[step.delta]));
  }
  document["problems"] = Json::array();
  for (const Model* model : {&delta, &target}) {
    for (const ModelProblem& problem : model->problems()) {
      document["problems"].push_back(
          {{"kinds", {"model"}}, {"explanation", json_path(model->path()) + ": " + problem.message}});
    }
  }
  if (plan.misfit) document["problems"].push_back({{"kinds", {"delta"}}, {"explanation", *plan.misfit}});
  for (const Plan::Problem& problem : plan.problems) {
    document["problems"].push_back({{"name", delta.tensors()[problem.delta].name},
                                    {"kinds", problem.mismatch.kinds},
                                    {"explanation", problem.mismatch.text}});
  }
  write_json(document, out);
}

int report_problems(const ApplyRequest& request, const Plan& plan, const Model& target, const Model& delta,
                    Streams& streams) {
  for (const Model* model : {&delta, &target}) tools::report_problems(streams, *model);
  if (plan.misfit) report_failure(streams, fmt::format("{}: {}", request.delta, *plan.misfit));
  for (const Plan::Problem& problem : plan.problems) {
    report_failure(
        streams, fmt::format("{}: {}: {}", request.delta, printable_name(delta.tensors()[problem.delta].name),
                             problem.mismatch.text));
  }
  const std::string why =
      plan.problems.empty() && plan.misfit ? fmt::format("{} does not fit", printable(request.delta))
      : plan.problems.empty()
          ? fmt::format("{} is not whole",
                        printable(delta.problems().empty() ? request.target : request.delta))
          : fmt::format("{} of {} tensors of the delta do not match", grouped(plan.problems.size()),
                        grouped(plan.problems.size() + plan.steps.size()));
  return report_failure(streams, fmt::format("{}: nothing was changed: {}", request.target, why));
}

/// Opens a whole model. Only trusted links are followed: another user's link could lead to a private file,
/// and the target's users may read the bytes of the delta afterwards. A single tensor's file in a mount is
/// refused: `stfs put` changes single tensors.
Result<std::unique_ptr<Model>> open_model(const std::string& named, Use use, Access access) {
  auto target = open_target(named, use, {.access = access, .links = Links::Trusted});
  RETURN_IF_ERROR(target);
  if (target->tensor) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                named + ": is a tensor's file: name the mount or the archive, or use `stfs put`");
  }
  return std::move(target->model);
}

Result<int> apply_delta(const ApplyRequest& request, Streams& streams) {
  auto delta = open_model(request.delta, Use::Tensors, Access::ReadOnly);
  if (!delta) return report_failure(streams, delta.error().message);
  auto target = open_model(request.target, Use::Change,
                           request.options.is_dry_run ? Access::ReadOnly : Access::ReadWrite);
  if (!target) return report_failure(streams, target.error().message);
  report_recovered(streams, **target);
  if (changes_structure(**delta, **target)) {
    // An edit needs files without readers. This process must not read them either.
    delta->reset();
    target->reset();
    return apply_structure(request, streams);
  }
  Change change(streams, std::move(*target), request.options);
  const Model& model = change.model();
  const Plan plan = plan_of(model.tensors(), **delta);
  const bool can_apply = is_possible(plan, model, **delta);
  if (can_apply) {
    report_not_shown(streams, **delta);
    report_not_shown(streams, model);
  }
  if (can_apply) {
    if (auto allowed = check_source_readers(model, **delta, request.delta); !allowed)
      return report_failure(streams, allowed.error().message);
  }
  if (can_apply && !request.options.is_dry_run) {
    RETURN_IF_ERROR(apply_plan(change, plan, **delta));
  }
  if (request.options.json) print_json(request, plan, model, **delta, streams.out);
  if (!can_apply) return report_problems(request, plan, model, **delta, streams);
  if (!request.options.json) print_text(request, plan, **delta, streams.out);
  streams.out.flush();  // before `change` is destroyed: a late interrupt then ends the process
  return streams.out ? kDone : kFailed;
}

}  // namespace

int apply(const Arguments& arguments, Streams& streams) {
  ApplyRequest request;
  CommandLine line("apply", "Change all tensors of a delta in the target at once, or none.", kApplyExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or root of a mount.");
  line.positional(request.delta, "DELTA",
                  "Archive or sharded model that holds the new tensors, or a published version.");
  line.flag(request.options.is_dry_run, "-n,--dry-run",
            "Check all and list the tensors that would change. Change nothing.");
  add_change_options(line, request.options.change);
  add_keep_space(line, request.options.keeps_space);
  line.number(request.threads, "--threads", "N",
              "Threads that apply a published version. Default: one for each processor.", 0, kMostWorkers);
  line.flag(request.options.json, "--json", "Print the result as a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (is_version_directory(request.delta)) {
    return apply_published({.target = request.target,
                            .directory = request.delta,
                            .options = request.options.change,
                            .threads = request.threads,
                            .is_dry_run = request.options.is_dry_run,
                            .json = request.options.json},
                           streams);
  }

  return attempt_beside_others(request.options.change, streams,
                               [&] { return apply_delta(request, streams); });
}

}  // namespace stfs::tools
