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

/// Whether the delta fits the model, as far as their headers tell.
bool fits_delta(const Model& model, const OpenDelta& delta) {
  return check_delta(delta.keys, delta.model->tensors(), model.tensors()).has_value();
}

/// A file or a link that says what the base is.
struct Namer {
  std::string shown;
  FileStatus status;
};

/// Adds the name if it is a link. ESTALE if it is another file than the one that was opened.
Result<void> add_link(const std::filesystem::path& name, const FileStatus& opened,
                      std::vector<Namer>& namers) {
  auto there = system_storage().status_of_name(name);
  if (!there) return pass_on(std::move(there));
  if (S_ISREG(there->mode) && !there->identity.same_file(opened.identity)) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                printable(name.native()) + ": was exchanged for another file after it was opened");
  }
  if (!S_ISLNK(there->mode)) return {};
  there->links = 1;
  there->mode &= ~07777U;  // of a link they say nothing
  namers.push_back({name.native(), *there});
  return {};
}

/// Refuses a base that the delta, an index or a link names, if the owner of one of these may not write the
/// base: the delta would write where its owner may not.
/// @param model  the base, open: its files count, whatever their names are now.
Result<void> check_naming(const std::filesystem::path& base, const OpenDelta& delta, const Model& model) {
  Storage& storage = system_storage();
  const auto of_delta = strict_status_of(delta.model->shards().front().archive->file());
  if (!of_delta) return tl::unexpected(of_delta.error());
  std::vector<Namer> always = {{delta.named, *of_delta}};
  if (model.is_sharded()) {
    auto index = storage.status_of_name(base);
    if (!index) return pass_on(std::move(index));
    always.push_back({base.native(), *index});
  }
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;  // its problem is reported
    const auto target = strict_status_of(shard.archive->file());
    if (!target) return tl::unexpected(target.error());
    std::vector<Namer> namers = always;
    if (auto added = add_link(shard.path, *target, namers); !added) return added;
    if (!model.is_sharded() && shard.path != base) {
      if (auto added = add_link(base, *target, namers); !added) return added;
    }
    for (const Namer& namer : namers) {
      // The owner counts. A delta that its group may write is an ordinary file where the umask is 002.
      const auto doubt = why_not_believed(storage, namer.status, -1, *target, shard.path.native());
      if (!doubt || !doubt->is_of_stranger) continue;
      return fail(
          ErrorCode::System, EPERM,
          fmt::format("{}: {}: name the base with --base", printable(namer.shown), printable(doubt->why)));
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
    const auto model = open_whole(candidate, Use::Tensors);
    if (!model || !fits_delta(**model, delta)) continue;
    if (auto named = check_naming(candidate, delta, **model); !named) return tl::unexpected(named.error());
    return candidate.native();
  }
  // Tells what is wrong with the first that is there.
  for (const std::filesystem::path& candidate : candidates) {
    if (!system_storage().status(candidate)) continue;
    if (const auto model = open_whole(candidate, Use::Tensors)) {  // else the caller's opening tells why
      if (auto named = check_naming(candidate, delta, **model); !named) return tl::unexpected(named.error());
    }
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
  if (line.has("--into")) return write_into(request, *base, *delta, streams);
  DeltaCommit how{.base = *base, .options = request.options};
  if (request.base.empty())
    how.check_base = [&](const Model& opened) { return check_naming(*base, *delta, opened); };
  return attempt_beside_others(request.options.change, streams,
                               [&] { return commit_delta(how, *delta, streams); });
}

}  // namespace stfs::tools
