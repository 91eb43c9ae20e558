// Asks the files for their times and locks, and compares states.
#include "tools/serve/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/model/model_shards.h"
#include "core/model/settled_model.h"

namespace stfs::serve {
namespace {

using upload::Plan;

sync::SyncPlace place_of(const Model& model) {
  return sync::sync_place_of(model.path().parent_path(), model.path().filename());
}

ModelState read_state(const Model& model) {
  ModelState state{.place = place_of(model)};
  for (const Shard& shard : model.shards())
    state.stamps.push_back(shard.archive ? sync::stamp_of(*shard.archive) : std::string());
  state.state_file = identity_at(state.place.state(), system_storage());
  if (!state.state_file) return state;
  const auto version = sync::read_sync_state(state.place);
  if (!version || !*version) return state;
  state.version = (*version)->text;
  state.changes = sync::read_sync_changes(state.place);
  return state;
}

}  // namespace

std::filesystem::path state_file_of(const Model& model) {
  return place_of(model).state();
}

std::vector<ModelState> read_states(const Plan& plan) {
  std::vector<ModelState> states;
  for (const auto& model : plan.models) states.push_back(read_state(*model));
  return states;
}

std::string version_text(const std::vector<ModelState>& states) {
  std::vector<std::string> versions;
  for (const ModelState& state : states) {
    if (!state.version.empty() && std::ranges::find(versions, state.version) == versions.end())
      versions.push_back(state.version);
  }
  return fmt::format("{}", fmt::join(versions, ", "));
}

Result<void> check_unchanged(const Plan& plan, const std::vector<ModelState>& states) {
  RETURN_IF_ERROR(upload::check_unchanged(plan));
  for (std::size_t at = 0; at < states.size(); ++at) {
    const auto now = read_state(*plan.models[at]);
    if (now.state_file == states[at].state_file && now.version == states[at].version) continue;
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                state_file_of(*plan.models[at]).string() + ": was changed since the upload was planned");
  }
  return {};
}

Result<void> check_settled(const Plan& plan) {
  for (const auto& model : plan.models) {
    RETURN_IF_ERROR(stfs::check_settled(*model));
  }
  return {};
}

Result<void> check_shown(const Plan& plan) {
  for (const auto& model : plan.models) {
    RETURN_IF_ERROR(stfs::check_shown(*model));
  }
  return {};
}

Result<void> check_no_receiver(const std::vector<ModelState>& states) {
  for (const ModelState& state : states) {
    if (sync::is_sync_locked(state.place))
      return fail(ErrorCode::Busy, EAGAIN,
                  state.place.directory.string() + ": another receiver updates the model");
  }
  return {};
}

bool has_same_structure(const Plan& a, const Plan& b) {
  const auto is_same = [](const Shard& one, const Shard& other) {
    if (one.path != other.path || !one.archive != !other.archive) return false;
    if (!one.archive) return true;
    return one.version->header->hash == other.version->header->hash &&
           one.version->header->size_bytes == other.version->header->size_bytes &&
           one.archive->identity().same_file(other.archive->identity());
  };
  return std::ranges::equal(a.models, b.models, [&](const auto& one, const auto& other) {
    return one->path() == other->path() && std::ranges::equal(one->shards(), other->shards(), is_same);
  });
}

std::vector<ArchiveChange> changes_between(const ModelState& before, const Model& model,
                                           const ModelState& state) {
  const bool follows = state.changes && !before.version.empty() && state.changes->since == before.version;
  std::vector<ArchiveChange> changes;
  for (std::size_t at = 0; at < state.stamps.size(); ++at) {
    const auto& reader = model.shards()[at].archive;
    // A stamp describes the file, and not a commit that is shown from its journal.
    if (reader && !reader->is_as_in_file()) {
      changes.push_back(ArchiveChange::Unknown);
      continue;
    }
    if (before.stamps[at] == state.stamps[at]) {
      changes.push_back(ArchiveChange::None);
      continue;
    }
    const ArchiveReader& archive = *reader;
    const auto is_from = [&] {
      const auto from = state.changes->from.find(archive.path().filename().string());
      return from != state.changes->from.end() && from->second == before.stamps[at];
    };
    // state.json is written after the archives: a later write to an archive comes from another program.
    const bool is_named = follows && is_from() && archive.identity().mtime_ns <= state.state_file->mtime_ns;
    changes.push_back(is_named ? ArchiveChange::Named : ArchiveChange::Unknown);
  }
  return changes;
}

}  // namespace stfs::serve
