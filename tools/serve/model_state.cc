// Asks the files for their times and locks, and compares states.
#include "tools/serve/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/wall_clock.h"
#include "core/journal/file_lock.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "core/model/model_shards.h"

namespace stfs::upload {
namespace {

/// A time that is further ahead comes from the clock of another host, or from touch(1).
constexpr std::int64_t kLongestTickNs = 20'000'000;

ModelState read_state(const Model& model) {
  ModelState state;
  state.directory = model.path().parent_path();
  for (const Shard& shard : model.shards())
    state.stamps.push_back(shard.archive ? sync::stamp_of(*shard.archive) : std::string());
  state.state_file = identity_at(state_file_of(model), system_storage());
  if (!state.state_file) return state;
  const auto version = sync::read_sync_state(state.directory);
  if (!version || !*version) return state;
  state.version = (*version)->text;
  state.changes = sync::read_sync_changes(state.directory);
  return state;
}

tl::unexpected<Error> unsettled(const std::filesystem::path& path, std::string_view why) {
  return fail(ErrorCode::Busy, EAGAIN, fmt::format("{}: {}", path.string(), why));
}

template <class Use>
void each_archive(const Model& model, const Use& use) {
  for (const Shard& shard : model.shards()) {
    if (shard.archive) use(*shard.archive);
  }
}

/// Whether one of the archive's journals is such a one. False if they cannot be listed: then commits are not
/// found by any reader.
template <class Is>
bool has_journal(const Archive& archive, const File& file, const Is& is) {
  const auto found = scan_journals(archive.storage(), archive.real_path(), file);
  return found && std::ranges::any_of(*found, is);
}

/// A process that dies loses the locks of archives first, and its journals are seen as committed only after
/// that. A lane journal stays in use between commits.
bool is_being_applied(const FoundJournal& journal) {
  return journal.is_in_use && !journal.is_lane_journal && !journal.record.ranges.empty();
}

bool waits_for_recovery(const FoundJournal& journal) {
  return journal.report.state == JournalState::Committed;
}

}  // namespace

std::filesystem::path state_file_of(const Model& model) {
  return model.path().parent_path() / kSyncStateName;
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
  if (auto unchanged = check_unchanged(plan); !unchanged) return unchanged;
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
    Result<void> settled;
    each_archive(*model, [&](const Archive& archive) {
      const File* const file = archive.local_file();
      if (!settled || file == nullptr) return;
      if (ArchiveLocks::is_changed_by_other(*file) || has_journal(archive, *file, is_being_applied)) {
        settled = unsettled(archive.path(), "another process is changing it");
        return;
      }
      const auto now = archive.status();
      if (!now) {
        settled = tl::unexpected(now.error());
        return;
      }
      const std::int64_t age_ns = wall_clock_ns(stfs::Clock::Coarse) - now->identity.mtime_ns;
      if (age_ns <= 0 && age_ns > -kLongestTickNs) settled = unsettled(archive.path(), "was just changed");
    });
    if (!settled) return settled;
  }
  return {};
}

Result<void> check_shown(const Plan& plan) {
  for (const auto& model : plan.models) {
    Result<void> shown;
    each_archive(*model, [&](const Archive& archive) {
      const File* const file = archive.local_file();
      if (!shown || file == nullptr || !archive.is_as_in_file()) return;
      if (has_journal(archive, *file, waits_for_recovery))
        shown = unsettled(archive.path(), "a commit waits for recovery");
    });
    if (!shown) return shown;
  }
  return {};
}

Result<void> check_no_receiver(const std::vector<ModelState>& states) {
  for (const ModelState& state : states) {
    if (sync::is_sync_locked(state.directory))
      return unsettled(state.directory, "another receiver updates the model");
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
    if (before.stamps[at] == state.stamps[at]) {
      changes.push_back(ArchiveChange::None);
      continue;
    }
    const ArchiveReader& archive = *model.shards()[at].archive;
    const auto is_from = [&] {
      const auto from = state.changes->from.find(archive.path().filename().string());
      return from != state.changes->from.end() && from->second == before.stamps[at];
    };
    // state.json is written after the archives: whoever has written to them since is another program.
    const bool is_named = follows && is_from() && archive.identity().mtime_ns <= state.state_file->mtime_ns;
    changes.push_back(is_named ? ArchiveChange::Named : ArchiveChange::Unknown);
  }
  return changes;
}

}  // namespace stfs::upload
