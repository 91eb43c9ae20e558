// Locks the model's sync state, opens the model, applies the version.
#include "tools/cli/version_change.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <ostream>
#include <utility>

#include "core/model/model.h"
#include "core/model/model_directory.h"
#include "core/model/model_index.h"
#include "core/storage/file.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/sync/published_version.h"
#include "tools/sync/pull.h"
#include "tools/sync/sync_state.h"
#include "tools/sync/version_apply.h"
#include "tools/sync/version_format.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

void print_text(const VersionChange& change, const sync::PublishedVersion& version,
                const sync::VersionOutcome& outcome, std::ostream& out) {
  const std::string what = fmt::format("{} of {}, {}", counted(outcome.changed_tensors, "tensor"),
                                       printable(change.target), human_size(outcome.changed_bytes));
  if (outcome.was_known || (outcome.changed_tensors == 0 && outcome.done_tensors > 0)) {
    out << fmt::format("{} has version {} already\n", printable(change.target), version.version().text);
  } else if (change.is_dry_run) {
    out << fmt::format("version {}: would change {}\n", version.version().text, what);
  } else {
    out << fmt::format("version {}: changed {}\n", version.version().text, what);
  }
}

void print_json(const VersionChange& change, const Model& model, const sync::PublishedVersion& version,
                const sync::VersionOutcome& outcome, std::ostream& out) {
  Json document = json_document();
  document["path"] = json_path(model.path());
  document["directory"] = json_path(version.directory());
  document["version"] = version.version().text;
  if (version.base_version()) document["base_version"] = version.base_version()->text;
  document["full"] = version.is_full();
  document["applied"] = !change.is_dry_run;
  document["known"] = outcome.was_known;
  document["changed_tensors"] = outcome.changed_tensors;
  document["changed_bytes"] = outcome.changed_bytes;
  document["done_tensors"] = outcome.done_tensors;
  write_json(document, out);
}

Result<TargetPath> locate_model(const VersionChange& change) {
  auto located = locate_target(change.target, Use::Change);
  RETURN_IF_ERROR(located);
  if (located->tensor) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                change.target + ": is a tensor's file: name the mount or the model");
  }
  return located;
}

}  // namespace

bool is_version_directory(const std::string& path) {
  if (!is_directory_of_models(path)) return false;
  const std::filesystem::path directory = path;
  const std::filesystem::path name =
      (directory.has_filename() ? directory : directory.parent_path()).filename();
  if (sync::version_of_directory(name.native())) return true;
  const auto index = system_storage().open(directory / sync::kVersionIndex, Access::ReadOnly);
  const auto size_bytes = index ? (*index)->size_bytes() : tl::unexpected(index.error());
  if (!size_bytes || *size_bytes > kMaxModelIndexBytes) return false;
  const auto text = read_text(**index, {0, *size_bytes});
  if (!text) return false;
  const auto metadata = sync::parse_version_metadata(*text);
  return metadata && metadata->encoding;
}

int apply_published(const VersionChange& change, Streams& streams) {
  const auto version = sync::PublishedVersion::open(change.directory);
  if (!version) return report_failure(streams, version.error().message);
  const auto located = locate_model(change);
  if (!located) return report_failure(streams, located.error().message);
  const auto place = sync::place_of_model(change.target);
  if (!place) return report_failure(streams, place.error().message);
  sync::VersionApplyOptions options;
  options.commit = commit_options_of(change.options);
  options.threads = static_cast<unsigned>(change.threads);
  options.is_dry_run = change.is_dry_run;
  auto state = change.is_dry_run ? Result<sync::SyncState>(sync::SyncState::without_lock(*place))
                                 : sync::SyncState::lock(*place, options.commit.lock_patience);
  if (!state) return report_failure(streams, state.error().message);
  const Access access = change.is_dry_run ? Access::ReadOnly : Access::ReadWrite;
  const auto target = open_located(*located, change.target, {.access = access});
  if (!target) {
    state->leave_nothing();
    return report_failure(streams, target.error().message);
  }
  const Model& model = *target->model;
  report_recovered(streams, model);
  if (auto read = state->read(); !read) return report_failure(streams, read.error().message);

  const InterruptGuard guard;
  std::optional<Work> work(std::in_place, watch_on(streams));
  options.work = &*work;
  const auto outcome = sync::apply_version(model, *version, *state, options);
  work.reset();
  if (!outcome) {
    state->leave_nothing();
    return report_failure(streams, outcome.error().message);
  }
  if (interrupted()) {
    report_failure(streams, "the interrupt came after the commit: the change is complete");
  }
  if (change.json) {
    print_json(change, model, *version, *outcome, streams.out);
  } else {
    print_text(change, *version, *outcome, streams.out);
  }
  streams.out.flush();  // before the guard ends: a late interrupt then ends the process
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
