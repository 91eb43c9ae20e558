// Finds the way, then takes its steps. Each step opens the model again, so that it is never stale.
#include "tools/sync/pull.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/model/model.h"
#include "core/model/model_directory.h"
#include "core/storage/file_attributes.h"
#include "core/storage/open_directory.h"
#include "tools/sync/file_switch.h"
#include "tools/sync/seeding.h"
#include "tools/sync/seeding_plan.h"
#include "tools/sync/sync_state.h"
#include "tools/sync/version_format.h"
#include "tools/target/target.h"

namespace stfs::sync {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostWithdrawals = 100;  // in a row

/// A directory that this pull has made.
struct MadeDirectory {
  std::shared_ptr<const OpenDirectory> above;
  std::string name;
};

/// Opens the directory. Makes the directory and the missing ones above it. Each is made in the open directory
/// above it, so that a user who puts a link in place of a new directory gains nothing.
/// @param made  gets the new directories, the topmost first.
Result<std::shared_ptr<const OpenDirectory>> open_or_make(Storage& storage, const std::filesystem::path& path,
                                                          std::vector<MadeDirectory>& made) {
  auto there = open_directory(storage, path, LastLink::Followed);
  if (there) return std::make_shared<const OpenDirectory>(std::move(*there));
  const std::filesystem::path parent = directory_of(path);
  if (there.error().errno_value != ENOENT || parent == path) return pass_on(std::move(there));
  auto above = open_or_make(storage, parent, made);
  if (!above || path.filename().empty()) return above;
  const OpenDirectory& in = **above;
  const std::filesystem::path name = path.filename();
  auto is_new = storage.make_directory(in.file(name));
  if (!is_new) return tl::unexpected(in.with_shown_paths(std::move(is_new).error(), parent));
  if (*is_new) made.push_back({*above, name});
  auto own = open_directory(storage, in.file(name));
  if (!own) return tl::unexpected(in.with_shown_paths(std::move(own).error(), parent));
  return std::make_shared<const OpenDirectory>(std::move(*own));
}

bool is_file(Storage& storage, const std::filesystem::path& path) {
  const auto there = storage.status(path);
  return there && S_ISREG(there->mode);
}

class Pull {
 public:
  Pull(const std::filesystem::path& model, const std::filesystem::path& published, const PullOptions& options)
      : model_(model), storage_(*options.storage), published_(published), options_(options) {}

  Result<std::optional<VersionNumber>> run() {
    auto place = place_of_model(model_, storage_);
    RETURN_IF_ERROR(place);
    place_ = std::move(*place);
    for (int withdrawals = 0;;) {
      auto done = take_way();
      if (done) return done;
      const bool is_withdrawn =
          done.error().code == ErrorCode::NotFound && done.error().errno_value == ESTALE;
      const bool is_gone = is_withdrawn || (says_gone(done.error()) && was_withdrawn());
      const bool is_stopped = options_.apply.work != nullptr && options_.apply.work->is_stopped();
      if (!is_gone || is_stopped || withdrawals >= kMostWithdrawals) return done;
      ++withdrawals;
      auto told = tell({.kind = PullEvent::Kind::Withdrawn, .version = {}, .why = done.error().message});
      RETURN_IF_ERROR(told);
    }
  }

 private:
  Result<void> tell(const PullEvent& event) const {
    return options_.on_event ? options_.on_event(event) : Result<void>{};
  }

  /// Returns true if there is nothing to pull for a model that has no state yet. This check precedes all
  /// changes, so that a wrong path leaves nothing.
  Result<bool> has_nothing_for_new() {
    if (is_there(place_, storage_)) return false;
    const auto publication = Publication::look(published_, storage_);
    RETURN_IF_ERROR(publication);
    seen_ = publication->versions();
    const auto way = publication->way({}, options_.target);
    RETURN_IF_ERROR(way);
    RETURN_IF_ERROR(check_beginning(model_, published_, *way, storage_));
    if (way->steps.empty() && way->unfinished) {
      auto told = tell({.kind = PullEvent::Kind::Unfinished, .version = {}, .why = way->unfinished->message});
      RETURN_IF_ERROR(told);
    }
    return way->steps.empty();
  }

  Result<std::optional<VersionNumber>> take_way() {
    const auto has_nothing = has_nothing_for_new();
    RETURN_IF_ERROR(has_nothing);
    if (*has_nothing) return std::optional<VersionNumber>();
    std::vector<MadeDirectory> made;
    auto directory = open_or_make(storage_, place_.directory, made);
    auto state = directory ? lock_in(std::move(*directory)) : pass_on(std::move(directory));
    auto done = state ? state->place().told(pull_to(*state)) : pass_on(std::move(state));
    if (done && *done) return done;
    if (state) state->leave_nothing();
    for (auto one = made.rbegin(); one != made.rend(); ++one)
      static_cast<void>(storage_.remove_directory(one->above->file(one->name)));  // if it is empty
    return done;
  }

  /// @param directory  the model's directory.
  Result<SyncState> lock_in(std::shared_ptr<const OpenDirectory> directory) {
    SyncPlace place = place_;
    place.opened_directory = std::move(directory);
    return SyncState::lock(place, options_.apply.commit.lock_patience, storage_, options_.apply.work);
  }

  Result<std::optional<VersionNumber>> pull_to(SyncState& state) {
    RETURN_IF_ERROR(finish_left_commit());
    RETURN_IF_ERROR(state.read());
    auto publication = Publication::look(published_, storage_);
    RETURN_IF_ERROR(publication);
    seen_ = publication->versions();
    std::optional<std::uint64_t> present;
    if (state.version()) present = state.version()->number;
    if (present && options_.target && *options_.target < *present) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("{}: the model has version {} already, which is newer than {}", model_.string(),
                              state.version()->text, version_text(*options_.target)));
    }
    auto way = publication->way(present, options_.target);
    RETURN_IF_ERROR(way);
    RETURN_IF_ERROR(check_beginning(model_, published_, *way, storage_));
    for (const Publication::Step& step : way->steps) {
      const auto version = publication->open(step);
      RETURN_IF_ERROR(version);
      RETURN_IF_ERROR(take_step(*version, state));
    }
    if (way->unfinished) {
      auto told = tell({.kind = PullEvent::Kind::Unfinished, .version = {}, .why = way->unfinished->message});
      RETURN_IF_ERROR(told);
    }
    RETURN_IF_ERROR(check_placed(storage_, state.place()));
    return state.version();
  }

  /// Returns true if a version that the last look found was withdrawn.
  [[nodiscard]] bool was_withdrawn() const {
    const auto now = Publication::look(published_, storage_);
    return now && !std::ranges::includes(now->versions(), seen_);
  }

  /// Opens the model, which finishes the commit that a killed receiver has left, and with it the state.
  /// Archives that another user may have planted stop no pull of a full version into their directory.
  Result<void> finish_left_commit() const {
    const bool is_named = is_file(storage_, model_);
    if (!is_named && !has_model(place_.directory, storage_)) return {};
    const auto opened = open_model();
    if (opened || (!is_named && has_planted_archives_only())) return {};
    return tl::unexpected(opened.error());
  }

  [[nodiscard]] bool has_planted_archives_only() const {
    const auto listed = list_model_directory(place_.directory, storage_);
    const auto is_planted = [&](const std::string& name) {
      return may_be_planted(storage_, place_.directory / name);
    };
    return listed && listed->indexes.empty() && std::ranges::all_of(listed->archives, is_planted);
  }

  Result<std::unique_ptr<Model>> open_model() const {
    auto located = tools::locate_target(model_, tools::Use::Change, tools::read_mount_attribute, storage_);
    RETURN_IF_ERROR(located);
    auto target = tools::open_located(
        *located, model_,
        {.access = Access::ReadWrite, .storage = &storage_, .uses_threads = options_.apply.threads != 1});
    RETURN_IF_ERROR(target);
    return std::move(target->model);
  }

  Result<void> take_step(const PublishedVersion& version, SyncState& state) const {
    const auto begin = Clock::now();
    PullEvent event{.kind = PullEvent::Kind::Applied, .version = version.version().text, .why = {}};
    if (version.is_full() && !takes_patches(version)) {
      event.kind = PullEvent::Kind::Seeded;
      Work unwatched;
      Work& work = options_.apply.work != nullptr ? *options_.apply.work : unwatched;
      RETURN_IF_ERROR(seed_model(model_, version, state, work));
    } else {
      auto model = open_model();
      RETURN_IF_ERROR(model);
      if (options_.on_open) options_.on_open(**model);
      if (version.base_version()) event.base_version = version.base_version()->text;
      auto outcome = apply_version(**model, version, state, options_.apply);
      RETURN_IF_ERROR(outcome);
      event.outcome = *outcome;
    }
    event.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    return tell(event);
  }

  /// Returns true if a full version has the same tensors as the present model, so that they can change in
  /// place.
  [[nodiscard]] bool takes_patches(const PublishedVersion& version) const {
    if (!has_model(place_.directory, storage_)) return false;
    const auto model = open_model();
    return model && (*model)->problems().empty() && has_same_tensors(version, **model);
  }

  const std::filesystem::path model_;
  Storage& storage_;
  SyncPlace place_{std::filesystem::path()};
  const std::filesystem::path published_;
  const PullOptions& options_;
  std::vector<std::uint64_t> seen_;
};

/// Returns the model of a directory in which its first pull was killed: archives may be there, but not yet
/// the index.
std::optional<std::string> begun_model(const std::filesystem::path& directory, Storage& storage) {
  const auto there = storage.status(directory);
  if (!there || !S_ISDIR(there->mode)) return std::nullopt;
  const SyncPlace shared(directory);
  if (model_in_sync_state(shared, storage)) return std::nullopt;
  return model_in_switch(storage, shared);
}

}  // namespace

Result<void> check_beginning(const std::filesystem::path& model, const std::filesystem::path& published,
                             const Publication::Way& way, Storage& storage) {
  if (way.steps.empty() || !way.steps.front().base) return {};
  const auto place = place_of_model(model, storage);
  RETURN_IF_ERROR(place);
  if (has_model(place->directory, storage)) return {};
  const Publication::Step& first = way.steps.front();
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: there is no model yet, and {} only changes one: put the model of version {} "
                          "there first, or publish a full version",
                          model.string(), (published / version_directory_name(first.version.number)).string(),
                          first.base->text));
}

Result<SyncPlace> place_of_model(const std::filesystem::path& model, Storage& storage) {
  if (const auto begun = begun_model(model, storage)) return sync_place_of(model, *begun, storage);
  const auto located = tools::locate_target(model, tools::Use::Change, tools::read_mount_attribute, storage);
  if (!located && located.error().errno_value == EXDEV) return tl::unexpected(located.error());
  const std::filesystem::path& path = located ? located->archive : model;
  const auto there = storage.status(path);
  if (located) {
    const auto owner = there ? std::optional(there->uid) : std::nullopt;
    RETURN_IF_ERROR(tools::check_naming_mount(*located, model, owner));
  }
  const bool is_of_file = located ? !there || !S_ISDIR(there->mode) : there && S_ISREG(there->mode);
  if (!located && is_of_file) return tl::unexpected(located.error());
  if (!is_of_file) return sync_place_of(path, std::string(kVersionIndex), storage);
  return sync_place_of(directory_of(path), path.filename(), storage);
}

Result<std::optional<VersionNumber>> pull(const std::filesystem::path& model,
                                          const std::filesystem::path& published,
                                          const PullOptions& options) {
  return guard_memory([&] { return Pull(model, published, options).run(); });
}

}  // namespace stfs::sync
