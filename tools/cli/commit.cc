// stfs commit: merges a delta into its base, or writes both as a new archive.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "core/model/delta_merge.h"
#include "core/model/model_directory.h"
#include "tools/cli/change.h"
#include "tools/cli/command_line.h"
#include "tools/cli/delta_output.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/edit.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output_path.h"
#include "tools/cli/repack_output.h"
#include "tools/cli/repack_plan.h"
#include "tools/cli/verb.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kCommitExamples =
    "DELTA is an archive that stfs diff --out or a mount has written. The base gets all its changes in one\n"
    "transaction: tensors, names, metadata, and the index of a sharded model. Afterwards the delta is of\n"
    "no more use: delete it. A base whose bytes have changed since is refused. If several deltas lie on\n"
    "top of each other, commit one at a time, the lowest first. If only bytes of tensors change, nothing\n"
    "moves in the base. Otherwise the tensors of the delta get new places, and others move into the gaps,\n"
    "as after stfs rm.\n"
    "\n"
    "Examples:\n"
    "  stfs commit --dry-run model.delta.safetensors\n"
    "  stfs commit --into merged.safetensors model.delta.safetensors    leave the base as it is\n"
    "  stfs commit --base model.safetensors model.delta.safetensors";

struct CommitRequest {
  std::string delta;
  std::string base;
  std::string into;
  bool is_replacing = false;
  EditOptions options;
};

/// The delta as the archive that it is, and its keys.
struct OpenDelta {
  std::unique_ptr<Model> model;
  Delta keys;
};

Result<OpenDelta> open_delta(const CommitRequest& request) {
  auto target = open_target(request.delta, Use::Tensors);
  if (!target) return pass_on(std::move(target));
  if (target->tensor || target->model->is_sharded()) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                request.delta + ": is not the archive of a delta: name its file");
  }
  auto keys = parse_delta(target->model->metadata());
  if (!keys) return tl::unexpected(std::move(keys).error().within(request.delta));
  return OpenDelta{std::move(target->model), std::move(*keys)};
}

/// The base as the user named it; else the file with the base's name beside the delta.
Result<std::string> base_of(const CommitRequest& request, const OpenDelta& delta) {
  if (!request.base.empty()) return request.base;
  const std::filesystem::path name(delta.keys.base);
  if (name.empty() || name != name.filename()) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: does not tell the name of its base: give it with --base", request.delta));
  }
  const std::filesystem::path beside = delta.model->path().parent_path() / name;
  std::error_code failed;
  if (std::filesystem::exists(beside, failed)) return beside.string();
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: its base {} does not lie beside it: give the base with --base", request.delta,
                          printable(name.native())));
}

/// Opens the base for reading, with the delta on top, and checks that it has the bytes that the delta was
/// made for.
Result<std::unique_ptr<Model>> open_variant(const std::string& base, const OpenDelta& delta,
                                            Streams& streams) {
  auto model = open_whole(base, Use::Tensors);
  if (!model) return model;
  if (auto fits = check_delta(delta.keys, delta.model->tensors(), (*model)->tensors()); !fits) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: {}: {}. Of deltas on top of each other, commit the lowest first", base,
                            delta.model->path().string(), fits.error().message));
  }
  model = open_whole(base, Use::Tensors, {.deltas = {delta.model->path()}});
  if (!model) return model;
  const InterruptGuard guard;
  if (auto fits = check_base_of(**model, streams); !fits) return pass_on(std::move(fits));
  return model;
}

std::string summary_of(const DeltaMerge& merge) {
  std::string text;
  const auto add = [&text](std::string_view what, std::size_t count, std::string_view noun) {
    if (count == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, counted(count, noun));
  };
  add("changed", merge.replaced.size() + merge.remade.size(), "tensor");
  add("added", merge.added.size(), "tensor");
  add("removed", merge.removed.size(), "tensor");
  add("renamed or retyped", merge.renamed.size(), "tensor");
  add("set", merge.metadata.size(), "key");
  return fmt::format("{}, {}", text, human_size(merge.size_bytes));
}

void print_names(const DeltaMerge& merge, const Model& changed, std::ostream& out) {
  const auto print = [&](std::string_view what, const std::vector<std::uint32_t>& positions) {
    for (const std::uint32_t at : positions) {
      const Tensor tensor = changed.tensors()[at];
      out << fmt::format("{} {}: {} {}, {}\n", what, printable_name(tensor.name), name_of(tensor.dtype),
                         shape_text(tensor.shape), human_size(tensor.data.size_bytes));
    }
  };
  print("change", merge.replaced);
  print("change", merge.remade);
  print("add", merge.added);
  for (const std::string& name : merge.removed) out << fmt::format("remove {}\n", printable_name(name));
  for (const Delta::Renamed& renamed : merge.renamed) {
    out << fmt::format("rename {} to {}: {} {}\n", printable_name(renamed.from), printable_name(renamed.name),
                       name_of(renamed.dtype), shape_text(renamed.shape));
  }
  for (const auto& [key, value] : merge.metadata) {
    out << fmt::format("{} metadata {}\n", value ? "set" : "unset", printable(key));
  }
}

Json names_of(const std::vector<std::uint32_t>& positions, const Model& changed) {
  Json tensors = Json::array();
  for (const std::uint32_t at : positions) tensors.push_back(json_of(changed.tensors()[at]));
  return tensors;
}

/// Only bytes change: the same transaction as that of `stfs apply`.
Result<void> patch(const EditTarget& target, const EditOptions& options, const DeltaMerge& merge,
                   const Model& changed, Streams& streams) {
  Change change(streams, *target.model, options.change, merge.size_bytes);
  for (const std::uint32_t at : merge.replaced) {
    const auto position = target.model->tensors().find(changed.tensors()[at].name);
    if (auto staged = change.stage(*position, changed, at); !staged) return staged;
  }
  return change.commit();
}

Result<void> edit(EditTarget& target, const EditOptions& options, const DeltaMerge& merge,
                  const Model& changed, Streams& streams) {
  if (auto added = add_to(target.edit, merge, changed); !added) return added;
  const auto fill = [&](const Advance& advance) -> Result<void> {
    std::vector<std::byte> scratch;
    for (std::uint32_t at = 0; at < changed.tensors().size(); ++at) {
      Staging* stage = target.edit.stage(changed.tensors()[at].name);
      const ByteRange from = changed.file_range(at);
      for (std::uint64_t offset = 0; offset < from.size_bytes;) {
        const std::uint64_t size_bytes = std::min(Change::kPieceBytes, from.size_bytes - offset);
        const auto piece = changed.archive_of(at).read({from.offset + offset, size_bytes}, scratch);
        if (auto goes_on = advance(size_bytes); !goes_on) return goes_on;
        if (!piece) return tl::unexpected(piece.error());
        if (auto written = stage->write(*piece, offset); !written) return written;
        offset += size_bytes;
      }
    }
    return {};
  };
  return carry_out(target, options, merge.size_bytes, fill, streams);
}

void print_merged(const CommitRequest& request, const std::string& base, const EditTarget& target,
                  const DeltaMerge& merge, const OpenDelta& delta, std::ostream& out) {
  const Model& changed = *delta.model;
  const bool is_dry_run = request.options.is_dry_run;
  if (request.options.json) {
    Json document = json_of_edit(target, request.options);
    document["changed"] = !is_dry_run && (!merge.is_patch() || !merge.replaced.empty());
    document["delta"] = json_path(changed.path());
    document["size_bytes"] = merge.size_bytes;
    std::vector<std::uint32_t> replaced = merge.replaced;
    replaced.insert(replaced.end(), merge.remade.begin(), merge.remade.end());
    document["replaced"] = names_of(replaced, changed);
    document["added"] = names_of(merge.added, changed);
    document["removed"] = merge.removed;
    document["renamed"] = Json::object();
    for (const Delta::Renamed& renamed : merge.renamed) document["renamed"][renamed.from] = renamed.name;
    document["metadata"] = Json::object();
    for (const auto& [key, value] : merge.metadata) {
      document["metadata"][key] = value ? Json(*value) : Json(nullptr);
    }
    write_json(document, out);
    return;
  }
  if (is_dry_run) print_names(merge, changed, out);
  const bool is_nothing = merge.is_patch() && merge.replaced.empty();
  if (is_nothing) {
    out << fmt::format("nothing to change in {}\n", printable(base));
  } else {
    print_result(out, target, request.options, fmt::format("{} in {}", summary_of(merge), printable(base)));
  }
  if (is_dry_run) return;
  const std::string name = printable(request.delta);
  out << (merge.is_patch()
              ? fmt::format("{} is not needed any more: delete it\n", name)
              : fmt::format("{} no longer fits its base, which has all its changes: delete it\n", name));
}

Result<int> merge_in_place(const CommitRequest& request, const std::string& base, const OpenDelta& delta,
                           Streams& streams) {
  if (!request.options.is_dry_run && !request.options.change.has_no_locks &&
      delta.model->archive(0).has_other_readers()) {
    return report_failure(streams, request.delta +
                                       ": is mounted, or another program has it open: unmount it "
                                       "first, since it will not fit its base any more");
  }
  // First: it recovers the base. Both models are open then, and this process must not be a reader of the
  // base when the edit begins: so the other one is closed at once.
  auto target = open_for_edit(base, streams);
  if (!target) return kFailed;
  if (const auto variant = open_variant(base, delta, streams); !variant) {
    return report_failure(streams, variant.error().message);
  }
  const auto merge = merge_of(delta.keys, *delta.model, *target->model);
  if (!merge) return report_failure(streams, fmt::format("{}: {}", request.delta, merge.error().message));
  Result<void> done;
  if (!merge->is_patch()) {
    done = edit(*target, request.options, *merge, *delta.model, streams);
  } else if (!request.options.is_dry_run) {
    done = patch(*target, request.options, *merge, *delta.model, streams);
  }
  if (!done) return tl::unexpected(done.error());
  print_merged(request, base, *target, *merge, delta, streams.out);
  streams.out.flush();
  return streams.out ? kDone : kFailed;
}

/// As `stfs repack --delta`.
int write_into(const CommitRequest& request, const std::string& base, const OpenDelta& delta,
               Streams& streams) {
  const auto variant = open_variant(base, delta, streams);
  if (!variant) return report_failure(streams, variant.error().message);
  const Model& model = **variant;
  if (report_problems(streams, model) != kDone) {
    return report_failure(streams, fmt::format("{}: is not whole: nothing was written", base));
  }
  RepackOptions all;
  all.out = request.into;
  const auto plan = plan_repack(model, all);
  if (!plan) return report_failure(streams, fmt::format("{}: {}", base, plan.error().message));
  if (const auto why = obstacle_at(plan->out, {{&model, "the base"}}, request.is_replacing)) {
    return report_failure(streams, plan->out.native() + ": " + *why);
  }
  const InterruptGuard guard;
  const EditOptions& options = request.options;
  if (!options.is_dry_run) {
    const auto written = write_repacked(model, *plan, {.is_replacing = request.is_replacing}, streams);
    if (!written) return report_failure(streams, written.error().message);
  }
  if (options.json) {
    Json document = json_document();
    document["path"] = json_path(plan->out);
    document["written"] = !options.is_dry_run;
    document["base"] = json_path(model.path());
    document["delta"] = json_path(delta.model->path());
    document["tensors"] = plan->tensors.size();
    document["data_size_bytes"] = plan->data_bytes;
    write_json(document, streams.out);
  } else {
    streams.out << fmt::format("{} {}: {}, {}\n", options.is_dry_run ? "would write" : "wrote",
                               printable(plan->out.native()), counted(plan->tensors.size(), "tensor"),
                               human_size(plan->data_bytes));
  }
  streams.out.flush();
  return streams.out ? kDone : kFailed;
}

}  // namespace

int commit(const Arguments& arguments, Streams& streams) {
  CommitRequest request;
  CommandLine line("commit", "Merge a delta into its base, completely or not at all.", kCommitExamples);
  line.positional(request.delta, "DELTA", "Archive that stfs diff --out or a mount has written.");
  line.text(request.base, "--base", "TARGET",
            "The base: archive, sharded model, or root of a mount. Default: the one that DELTA names.");
  line.text(request.into, "--into", "OUT", "Write base and delta as the new archive OUT. Change neither.");
  line.flag(request.is_replacing, "-f,--force", "With --into: replace a file that exists.");
  add_edit_options(line, request.options);
  add_keep_space(line, request.options.keeps_space);
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (line.has("--into") && request.into.empty()) return report_wrong_usage(streams, "--into: OUT is empty");
  if (line.has("--base") && request.base.empty()) {
    return report_wrong_usage(streams, "--base: the name of the base is empty");
  }
  if (!line.has("--into") && request.is_replacing) return report_wrong_usage(streams, "--force needs --into");
  if (std::string_view(request.into).ends_with(".index.json")) {
    return report_wrong_usage(streams, "--into: OUT is an archive: `stfs repack --delta` writes shards");
  }

  const auto delta = open_delta(request);
  if (!delta) return report_failure(streams, delta.error().message);
  if (report_problems(streams, *delta->model) != kDone) {
    return report_failure(streams, fmt::format("{}: is not whole: nothing was changed", request.delta));
  }
  const auto base = base_of(request, *delta);
  if (!base) return report_failure(streams, base.error().message);
  return line.has("--into") ? write_into(request, *base, *delta, streams)
                            : attempt_beside_others(request.options.change, streams, [&] {
                                return merge_in_place(request, *base, *delta, streams);
                              });
}

}  // namespace stfs::tools
