// stfs commit: merges a delta into its base, or writes both as a new archive.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "core/journal/journal_access.h"
#include "core/model/delta_base.h"
#include "core/model/model_directory.h"
#include "core/storage/file.h"
#include "core/storage/permissions.h"
#include "core/storage/trusted_links.h"
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

/// Returns true if the delta fits the model, as far as the headers show.
bool fits_delta(const Model& model, const OpenDelta& delta) {
  return check_delta(delta.keys, delta.model->tensors(), model.tensors()).has_value();
}

/// A file or a link that names the base.
struct Namer {
  std::string shown;
  FileStatus status;
  int descriptor = -1;
  bool is_only_for_writers = false;  // all users who may write this file must be allowed to write the base
};

/// Adds the name if it is a link. ESTALE if it is another file than the one that was opened.
Result<void> add_link(const std::filesystem::path& name, const FileStatus& opened,
                      std::vector<Namer>& namers) {
  auto there = system_storage().status_of_name(name);
  RETURN_IF_ERROR(there);
  if (S_ISREG(there->mode) && !there->identity.same_file(opened.identity)) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                printable(name.native()) + ": was exchanged for another file after it was opened");
  }
  if (!S_ISLNK(there->mode)) return {};
  there->links = 1;
  there->mode &= ~07777U;  // the mode of a link has no meaning
  namers.push_back({name.native(), *there});
  return {};
}

/// Returns the delta as a file that names the base. A base in another directory may be any file of this host:
/// then each user who may write the delta's attribute decides where the commit writes. Beside the delta only
/// the owner decides, because a delta that its group may write is an ordinary file where the umask is 002.
Result<Namer> namer_of(const OpenDelta& delta, const std::filesystem::path& base) {
  const File& file = delta.model->shards().front().archive->file();
  auto status = file.status();
  RETURN_IF_ERROR(status);
  const auto strict = strict_status_of(file);
  RETURN_IF_ERROR(strict);
  status->uid = strict->uid;
  status->links = 1;  // another name gives no right to write the attribute
  const bool is_elsewhere = base.parent_path() != delta.model->path().parent_path();
  return Namer{delta.named, *status, file.descriptor(), is_elsewhere};
}

/// Refuses a base that the delta, an index or a link names, if the owner of one of these may not write the
/// base: otherwise the delta would write where its owner may not. For the other writers of the delta see
/// namer_of().
/// @param model  the base, open: its files are checked, even if their names lead elsewhere now.
Result<void> check_naming(const std::filesystem::path& base, const OpenDelta& delta, const Model& model) {
  Storage& storage = system_storage();
  auto of_delta = namer_of(delta, base);
  RETURN_IF_ERROR(of_delta);
  std::vector<Namer> always = {std::move(*of_delta)};
  if (model.is_sharded()) {
    auto index = storage.status_of_name(base);
    RETURN_IF_ERROR(index);
    always.push_back({base.native(), *index});
  }
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;  // its problem is reported
    const auto target = strict_status_of(shard.archive->file());
    RETURN_IF_ERROR(target);
    std::vector<Namer> namers = always;
    RETURN_IF_ERROR(add_link(shard.path, *target, namers));
    if (!model.is_sharded() && shard.path != base) {
      RETURN_IF_ERROR(add_link(base, *target, namers));
    }
    for (const Namer& namer : namers) {
      const auto doubt =
          why_not_believed(storage, namer.status, namer.descriptor, *target, shard.path.native());
      if (!doubt || !(doubt->is_of_stranger || namer.is_only_for_writers)) continue;
      return fail(
          ErrorCode::System, EPERM,
          fmt::format("{}: {}: name the base with --base", printable(namer.shown), printable(doubt->why)));
    }
  }
  return {};
}

/// Returns the base that the user named. Otherwise the file with the base's name beside the delta, or the
/// file where the last mount of the delta has found the base.
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
    RETURN_IF_ERROR(check_naming(candidate, delta, **model));
    return candidate.native();
  }
  // Report the problem of the first candidate that exists.
  for (const std::filesystem::path& candidate : candidates) {
    if (!system_storage().status(candidate)) continue;
    if (const auto model = open_whole(candidate, Use::Tensors)) {  // else the caller's opening reports why
      RETURN_IF_ERROR(check_naming(candidate, delta, **model));
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

/// Does the same as `stfs repack --delta`.
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
  line.file(request.into, "--into", "OUT", "Write base and delta as the new archive OUT. Change neither.");
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
  std::optional<NoForeignMounts> guard;
  if (request.base.empty()) guard.emplace();  // the delta's owner names the base
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
