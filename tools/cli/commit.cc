// stfs commit: merges a delta into its base, or writes both as a new archive.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "core/journal/journal_access.h"
#include "core/model/delta_base.h"
#include "core/model/model_directory.h"
#include "core/storage/file.h"
#include "core/storage/permissions.h"
#include "tools/cli/command_line.h"
#include "tools/cli/delta_commit.h"
#include "tools/cli/diagnostic.h"
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

/// Whether a model is there that the delta fits, as far as its headers tell.
bool fits_delta(const std::string& base, const OpenDelta& delta) {
  const auto model = open_whole(base, Use::Tensors);
  return model && check_delta(delta.keys, delta.model->tensors(), (*model)->tensors());
}

/// Refuses a base that the delta, or a link, names, if the owner of one of these may not write the base: the
/// delta would write where its owner may not.
Result<void> check_naming(const std::filesystem::path& base, const OpenDelta& delta) {
  Storage& storage = system_storage();
  const auto model = open_whole(base.native(), Use::Tensors);
  if (!model) return {};  // the caller's opening tells why
  auto file = strict_status_of(storage, delta.model->path());
  if (!file) return pass_on(std::move(file));
  auto link = storage.status_of_name(base);
  if (!link) return pass_on(std::move(link));
  link->links = 1;
  link->mode &= ~07777U;  // of a link they say nothing
  for (const Shard& shard : (*model)->shards()) {
    const auto target = strict_status_of(storage, shard.path);
    if (!target) return tl::unexpected(target.error());
    // The owner counts. A delta that its group may write is an ordinary file where the umask is 002.
    auto doubt = why_not_believed(storage, *file, -1, *target, shard.path.native());
    const bool is_of_delta = doubt && doubt->is_of_stranger;
    if (!is_of_delta && S_ISLNK(link->mode))
      doubt = why_not_believed(storage, *link, -1, *target, shard.path.native());
    if (doubt && doubt->is_of_stranger) {
      const std::string of = is_of_delta ? delta.named : base.native();
      return fail(ErrorCode::System, EPERM,
                  fmt::format("{}: {}: name the base with --base", printable(of), printable(doubt->why)));
    }
  }
  return {};
}

/// The base as the user named it. Else the file with the base's name beside the delta, or the one where the
/// last mount of the delta has found it.
Result<std::string> base_of(const CommitRequest& request, const OpenDelta& delta) {
  if (!request.base.empty()) return request.base;
  const std::filesystem::path name(delta.keys.base);
  std::vector<std::filesystem::path> candidates;
  if (!name.empty() && name == name.filename()) {
    candidates.push_back(delta.model->path().parent_path() / name);
  }
  if (const auto known = known_path_of_base(delta.model->front())) candidates.emplace_back(*known);
  for (const std::filesystem::path& candidate : candidates) {
    if (!fits_delta(candidate, delta)) continue;
    if (auto named = check_naming(candidate, delta); !named) return tl::unexpected(named.error());
    return candidate.native();
  }
  // Tells what is wrong with the first that is there.
  std::error_code failed;
  for (const std::filesystem::path& candidate : candidates) {
    if (!std::filesystem::exists(candidate, failed)) continue;
    if (auto named = check_naming(candidate, delta); !named) return tl::unexpected(named.error());
    return candidate.native();
  }
  if (candidates.empty()) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: does not tell the name of its base: give it with --base", request.delta));
  }
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: its base {} does not lie beside it{}: give the base with --base",
                          request.delta, printable(name.native()),
                          candidates.size() > 1 ? ", nor at " + printable(candidates.back().native()) : ""));
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

  const auto delta = open_delta(request.delta);
  if (!delta) return report_failure(streams, delta.error().message);
  if (report_problems(streams, *delta->model) != kDone) {
    return report_failure(streams, fmt::format("{}: is not whole: nothing was changed", request.delta));
  }
  const auto base = base_of(request, *delta);
  if (!base) return report_failure(streams, base.error().message);
  return line.has("--into") ? write_into(request, *base, *delta, streams)
                            : attempt_beside_others(request.options.change, streams, [&] {
                                return commit_delta({*base, request.options}, *delta, streams);
                              });
}

}  // namespace stfs::tools
